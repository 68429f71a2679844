"""A world of any kind, lived through from its seed, and what is said of one that fails."""

from __future__ import annotations

import logging
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from chain_kernel.testing.virtual_loop import run_virtual

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator
    from contextlib import AbstractContextManager

    from tests.judge.rules import Model


class AnyWorld(Protocol):
    """What worlds have in common."""

    trace: Any
    """The last lines of its story."""

    @property
    def models(self) -> Iterable[Model]: ...
    @property
    def successions(self) -> Collection[tuple[str, str]]: ...
    async def live(self) -> None: ...
    def end(self) -> None: ...
    def check(self) -> None: ...


World = TypeVar("World", bound=AnyWorld)


class SeedFailed(AssertionError):
    """A seed found something: what, and how to see it again.

    `PLAINER` of its plan says what may be left out of a world, the most confusing first: lost and
    late messages among them, so that what is left comes in the order in which it was sent.
    """

    def __init__(
        self,
        plan: Any,
        error: BaseException,
        trace: Iterable[str],
        changes: dict[str, Any],
        again: Callable[..., object],
    ) -> None:
        """`changes` are those to what the seed draws; `again` lives through a seed with them."""
        story = "\n".join(trace)
        changed = f" with {changes}" if changes else ""
        super().__init__(
            f"seed {plan.seed}{changed}: {error}\n{plan}\n{story}\n"
            f"replay: make simulate SEED={plan.seed} SEEDS=1"
        )
        self.seed, self.plan, self.changes, self.again = plan.seed, plan, changes, again
        self.rule = str(error).partition(":")[0]


def live_through(
    plan: Any,
    make: Callable[[], World],
    changes: dict[str, Any],
    again: Callable[..., object],
    *around: AbstractContextManager[object],
) -> World:
    """Make a world in virtual time, `around` it what it needs, and live through it.

    Raises SeedFailed, whose other arguments are these.
    """
    worlds: list[World] = []

    async def live() -> None:
        worlds.append(make())
        try:
            await worlds[0].live()
        finally:
            worlds[0].end()

    with ExitStack() as stack:
        for each in (quiet(), *around):
            stack.enter_context(each)
        try:
            run_virtual(live(), seed=plan.seed, seconds=600.0)
            worlds[0].check()
        except Exception as error:
            trace = worlds[0].trace if worlds else ()
            raise SeedFailed(plan, error, trace, changes, again) from error
    return worlds[0]


@contextmanager
def quiet() -> Iterator[None]:
    """Write none of the warnings of a thousand broken worlds."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)
