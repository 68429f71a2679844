"""The runs of a source: read one by one, let go of, or read again to compare."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matcher_receiver.decisions import Halt
from matcher_receiver.kit import AWAY

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from matcher_receiver.kit import Kit
    from orderchain.event import Event
    from orderchain.run import Run


async def next_run(runs: AsyncIterator[Run]) -> Run | None:
    """Return the next run; None at the end."""
    return await anext(runs, None)


async def end_runs(runs: AsyncIterator[Run]) -> None:
    """Let go of what a source holds for `runs`, where it is a generator."""
    close: Callable[[], Awaitable[None]] | None = getattr(runs, "aclose", None)
    if close is not None:
        await close()


async def compare(kit: Kit) -> None:
    """Read the last batch again: only rows that differ halt, not a seal alone.

    Of the primary: the word of a standby halts nobody. Raises HaltError. A database that is away is
    waited for a little; then nothing is decided.
    """
    core = kit.core
    rows: list[Event] = []
    end = core.head
    runs = kit.gap_source.runs(core.compared_from, core.head.id, from_primary=True)
    try:
        while (run := await next_run(runs)) is not None:
            rows += run.events
            end = run.end
    except AWAY as error:
        await kit.waits.pause(error)
        return
    finally:
        await end_runs(runs)
    decision = core.compare(rows, end)
    if isinstance(decision, Halt):
        raise decision.error
