"""Checkpoints in memory, and the transactions that commit them together with their effects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from orderchain.errors import ChainMissing, CheckpointLost, RetryError, SettingError
from orderchain.testing.wire import WireBroken

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from orderchain.model import Mark
    from orderchain.testing.memory_store import CommittedChain, MemoryDatabase
    from orderchain.testing.wire import Wire


_T = TypeVar("_T")


class MemoryTransaction:
    """A caller's own transaction: at its commit all of it happens, or nothing.

    It is given as `connection` to `Receiver.checkpoint`. Without a commit it was rolled back.
    """

    def __init__(self) -> None:
        self._checks: list[Callable[[], None]] = []
        self._effects: list[Callable[[], None]] = []

    def add(self, effect: Callable[[], None]) -> None:
        """Have `effect` take place at the commit."""
        self._effects.append(effect)

    def check(self, check: Callable[[], None]) -> None:
        """Call `check` at the commit; what it raises rolls everything back."""
        self._checks.append(check)

    async def commit(self) -> None:
        """Take effect at one instant. Raises CheckpointLost, as a wait for the row's lock would."""
        for check in self._checks:
            check()
        for effect in self._effects:
            effect()


class MemoryCheckpointStore:
    """One receiver's place; implements `orderchain.ports.CheckpointStore`.

    With a `wire` every question takes its time, and may get lost.
    """

    def __init__(
        self, database: MemoryDatabase, chain_id: int, receiver: str, wire: Wire | None = None
    ) -> None:
        self._database = database
        self._chain_id = chain_id
        self._receiver = receiver
        self._wire = wire
        self._in_doubt: list[Mark] = []

    @property
    def chain_id(self) -> int:
        """The chain in which the place is."""
        return self._chain_id

    @property
    def receiver(self) -> str:
        """The receiver's name."""
        return self._receiver

    async def load(self) -> Mark | None:
        """Return the stored place; see `orderchain.ports.CheckpointStore.load`."""
        return await self._ask(self._stored)

    async def save(self, first_pid: int, end: Mark, connection: object | None = None) -> None:
        """Move the place by compare-and-set; see `orderchain.ports.CheckpointStore.save`.

        `connection` is a MemoryTransaction.
        """
        if end.id < first_pid:
            raise SettingError("end of a checkpoint", end.id, f"a place from {first_pid} on")
        if isinstance(connection, MemoryTransaction):
            first_pid = self._from(first_pid)
            self._check(first_pid, end)
            connection.check(lambda: self._check(first_pid, end))
            connection.add(lambda: self._put(end))
            return

        async def move() -> None:
            self._check(self._from(first_pid), end)
            self._put(end)

        try:
            await self._ask(move)
        except CheckpointLost:
            raise
        except BaseException:
            self._in_doubt.append(end)
            raise
        self._in_doubt.clear()

    async def close(self) -> None:
        """Nothing is held."""

    async def _stored(self) -> Mark | None:
        return self._chain().checkpoints.get(self._receiver)

    def _from(self, first_pid: int) -> int:
        """Return the place to move from: a save whose answer was lost may have been stored."""
        stored = self._chain().checkpoints.get(self._receiver)
        return stored.id if stored is not None and stored in self._in_doubt else first_pid

    def _check(self, first_pid: int, end: Mark) -> None:
        stored = self._chain().checkpoints.get(self._receiver)
        if stored is None:
            is_where_it_was = first_pid in (0, end.id)
        else:
            is_where_it_was = stored.id == first_pid and end.id >= stored.id
        if not is_where_it_was:
            found_id = None if stored is None else stored.id
            raise CheckpointLost(self._chain_id, self._receiver, first_pid, found_id)

    def _put(self, end: Mark) -> None:
        self._chain().checkpoints[self._receiver] = end

    def _chain(self) -> CommittedChain:
        if self._database.is_away:
            raise RetryError("the database is away")
        try:
            return self._database.chains[self._chain_id]
        except KeyError:
            raise ChainMissing(self._chain_id) from None

    async def _ask(self, work: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        if self._wire is None:
            return await work()
        try:
            return await self._wire.call(work)
        except WireBroken as error:
            raise RetryError(str(error)) from error
