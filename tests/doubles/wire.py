"""The way between a process and a server: it takes time, and loses questions and answers.

A question runs at the server at one instant, whatever has happened to its process meanwhile: so a
commit may land after its client is gone, or after it was given up for lost.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import Context
from functools import partial
from random import Random
from typing import Any, Final, Generic, NamedTuple, TypeVar

from msgspec import Struct

from chain_kernel.testing.virtual_loop import check_alive

_T = TypeVar("_T")

_CLOSE_WAYS: Final = 4
"""A close race is decided within this many ways to the server: the time of a question or two."""

_ANY_TIME_SHARE: Final = 0.4
"""Share of late questions that come any time; others race with what the asker does next."""

_ENDED_SHARE: Final = 0.3
"""Share of the waiting sessions without a client that the server has noticed and ended."""

_NOBODY: Final = Context()
"""Where servers run: in no process, so that no pause holds them up."""


class WireBroken(Exception):
    """There is no answer. `may_be_done`: the question may have been, or may yet be, executed."""

    def __init__(self, server: str, *, may_be_done: bool) -> None:
        super().__init__(f"{server}: {'the answer was lost' if may_be_done else 'not reached'}")
        self.may_be_done = may_be_done


class Dial(Struct, kw_only=True):
    """How bad a wire is: shares of questions, drawn independently. It may be turned any time."""

    refused: float = 0.0
    """Refused at once; not executed."""
    question_lost: float = 0.0
    """Never arrives; the asker learns later that there is no answer."""
    answer_lost: float = 0.0
    """Executed, but the answer does not come back."""
    late: float = 0.0
    """Arrives much later, most often when the asker has given up: it is executed anyway."""
    seconds_max: float = 0.005
    """The longest time of each way, when nothing is wrong."""
    patience_seconds: float = 1.0
    """How long an asker waits at most for an answer that does not come."""
    late_seconds_max: float = 3.0
    """How late a late question may be: longer than anybody's patience."""

    @property
    def is_sound(self) -> bool:
        """Whether nothing is lost."""
        return not (self.refused or self.question_lost or self.answer_lost or self.late)

    def heal(self) -> None:
        """Lose nothing from now on."""
        self.refused = self.question_lost = self.answer_lost = self.late = 0.0


class WiredServer:
    """What wires lead to. It may be away for a while, crash, or hold questions up."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_away = False
        self.is_silent = False
        """Whether it takes questions and never answers one: a half-open connection."""
        self.boots = 0
        """Raised by each crash: what was under way to or from an earlier life is lost."""
        self.is_held = False
        self.is_frozen = False
        self._frozen: list[Callable[[], None]] = []
        self._lands_first = False
        self._held: list[tuple[Callable[[], None], Callable[[], Coroutine[Any, Any, object]]]] = []

    @property
    def is_answering(self) -> bool:
        """Whether a connect succeeds."""
        return not (self.is_away or self.is_silent or self.is_frozen)

    def freeze(self) -> None:
        """Keep connections and questions, and answer nothing until `thaw`."""
        self.is_frozen = True

    def thaw(self) -> None:
        """Go on with the questions that have come meanwhile, in their order."""
        self.is_frozen = False
        frozen, self._frozen = self._frozen, []
        for arrive in frozen:
            arrive()

    def keep_frozen(self, arrive: Callable[[], None]) -> None:
        """Have `arrive` called by `thaw`."""
        self._frozen.append(arrive)

    def crash(self) -> None:
        """Break every connection; the server is away until somebody resets `is_away`."""
        self.drop_connections()
        self.is_away = True

    def drop_connections(self) -> None:
        """Break every connection of a server that stays, as when its backends are terminated."""
        self.boots += 1
        held, self._held = self._held, []
        for _, work in held[: self._lands_first]:
            with suppress(Exception):  # its answer is lost, whatever it is
                run_at_once(work())

    def hold(self, *, lands_first: bool = False) -> None:
        """Let questions that need the chain's row wait until `let_go`, as for a lock.

        With `lands_first` they wait as if a synchronous standby was away: the first one is done,
        and not answered yet; the end of its connection does not undo it.
        """
        self.is_held, self._lands_first = True, lands_first

    def let_go(self) -> None:
        """Execute the questions that wait, in their order, and hold up none from now on."""
        self.is_held = self._lands_first = False
        held, self._held = self._held, []
        for arrive, _ in held:
            arrive()

    def keep_waiting(
        self, arrive: Callable[[], None], work: Callable[[], Coroutine[Any, Any, object]]
    ) -> None:
        """Have `arrive` called when the row is free; never, if the connection breaks before."""
        self._held.append((arrive, work))


class _Question(NamedTuple, Generic[_T]):
    """What is on its way to a server."""

    work: Callable[[], Coroutine[Any, Any, _T]]
    answer: asyncio.Future[_T]
    server: WiredServer
    """Where it was sent to: the wire may lead to another one by now."""
    boots: int
    """Those of the server when it was sent."""
    needs_row: bool


class Wire:
    """One process's way to one server."""

    def __init__(self, server: WiredServer, dial: Dial, random: Random) -> None:
        self.server = server
        self.dial = dial
        self._random = random

    async def call(
        self, work: Callable[[], Coroutine[Any, Any, _T]], *, needs_row: bool = False
    ) -> _T:
        """Make the server do `work`, which must not wait for anything, and return its result.

        With `needs_row` it waits while the server holds such questions up. Raises what `work`
        raises, WireBroken when there is no answer, and StoppedError in a process that was killed.
        """
        await self.reach()
        return await self.answered(self.ask(work, needs_row=needs_row))

    async def reach(self) -> None:
        """Raise WireBroken where the server takes no question, StoppedError in a killed process."""
        check_alive()
        if self.server.is_away or self._happens(self.dial.refused):
            await asyncio.sleep(self._seconds())
            check_alive()
            raise WireBroken(self.server.name, may_be_done=False)

    def ask(
        self,
        work: Callable[[], Coroutine[Any, Any, _T]],
        *,
        needs_row: bool = False,
        server: WiredServer | None = None,
    ) -> asyncio.Future[_T]:
        """Send the question, and return where `answered` finds its answer; else as `call`.

        `server`: where it goes, if the wire may lead to another one by now.
        """
        answer: asyncio.Future[_T] = asyncio.get_running_loop().create_future()
        server = server or self.server
        self._send(_Question(work, answer, server, server.boots, needs_row))
        return answer

    async def answered(self, answer: asyncio.Future[_T]) -> _T:
        """Wait for an answer. Raises as `call`."""
        try:
            result = await answer
        except Exception:
            check_alive()
            raise
        check_alive()
        return result

    def _send(self, question: _Question[_T]) -> None:
        later = asyncio.get_running_loop().call_later
        if self._happens(self.dial.late):
            given_up = self._give_up_on(question.answer)
            later(self._lateness(given_up), self._arrive, question, context=_NOBODY)
        elif question.server.is_silent or self._happens(self.dial.question_lost):
            self._give_up_on(question.answer)
        else:
            later(self._seconds(), self._arrive, question, context=_NOBODY)

    def _lateness(self, given_up: float) -> float:
        """Return when a late question arrives: any time, or right after it is given up.

        At that moment an asker that takes silence for an answer goes wrong.
        """
        if self._random.random() < _ANY_TIME_SHARE:
            return self._random.uniform(0.0, self.dial.late_seconds_max)
        return given_up + self._random.uniform(0.0, _CLOSE_WAYS * self.dial.seconds_max)

    def _give_up_on(self, answer: asyncio.Future[_T]) -> float:
        delay = self._random.uniform(0.0, self.dial.patience_seconds)
        asyncio.get_running_loop().call_later(delay, self._break, answer, context=_NOBODY)
        return delay

    def _arrive(self, question: _Question[_T]) -> None:
        """At the server: do what is asked, and send the answer."""
        answer, server = question.answer, question.server
        if server.is_away or question.boots != server.boots:
            self._break(answer)
            return
        if server.is_frozen:
            self._give_up_on(answer)
            server.keep_frozen(partial(self._arrive, question))
            return
        if question.needs_row and server.is_held:
            self._give_up_on(answer)
            server.keep_waiting(partial(self._arrive_late, question), question.work)
            return
        result: _T | None = None
        error: Exception | None = None
        try:
            result = run_at_once(question.work())
        except Exception as raised:  # noqa: BLE001 - it is the answer
            error = raised
        if self._happens(self.dial.answer_lost):
            self._give_up_on(answer)
            return
        asyncio.get_running_loop().call_later(
            self._seconds(), self._answer, question, result, error, context=_NOBODY
        )

    def _arrive_late(self, question: _Question[_T]) -> None:
        """The row is free: a session whose client had gone may have been ended by now, or not."""
        if not (question.answer.done() and self._random.random() < _ENDED_SHARE):
            self._arrive(question)

    def _answer(self, question: _Question[Any], result: object, error: Exception | None) -> None:
        answer = question.answer
        if question.boots != question.server.boots:
            self._break(answer)
        elif answer.done():
            return
        elif error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(result)

    def _break(self, answer: asyncio.Future[Any]) -> None:
        if not answer.done():
            answer.set_exception(WireBroken(self.server.name, may_be_done=True))

    def _happens(self, share: float) -> bool:
        return share > 0.0 and self._random.random() < share

    def _seconds(self) -> float:
        return self._random.uniform(0.0, self.dial.seconds_max)


def run_at_once(work: Coroutine[Any, Any, _T]) -> _T:
    """Return what `work` returns, which waits for nothing but turns of the loop."""
    try:
        while True:
            work.send(None)
    except StopIteration as end:
        result: _T = end.value
        return result
