"""A cancelled wait loses nothing: real reader, real checkpoints, cancelled at every await.

One life is a start, a catch-up of several pages, a live frame, a gap of several pages, a lost tail
that a heartbeat shows, a checkpoint after each run, and the end. It is lived again and again, each
time cancelled at the next await, until there is none left. The call that was cancelled is made
again, as a caller of `asyncio.timeout` would.
"""

from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from chain_kernel.model import Run
from chain_kernel.sql import GAP_READER, RECEIVER_WRITER
from gapfill import GapReader, GapReaderConfig
from matcher_receiver import CheckpointConfig, PostgresCheckpointStore, Receiver, ReceiverConfig
from tests.builders.stored_chain import StoredChain
from tests.cancellation import CancelAt, Cancelled
from tests.deadlines import deadline
from tests.tuned import tuned
from tests.unit.matcher_receiver.memory import MemoryFrames

from .conftest import RoleDsn

TRIES = 3
"""A call is cancelled once, so at the second try it must get through."""


class Parts:
    """What a receiver is given; each part notes when its close was done to the end."""

    def __init__(self, role_dsn: RoleDsn, chain_id: int, name: str) -> None:
        self.frames = MemoryFrames()
        self.gaps = Reader(
            GapReaderConfig(
                database=role_dsn(GAP_READER), chain_id=chain_id, page_rows=5, linger_seconds=5.0
            )
        )
        self.checkpoints = Store(
            CheckpointConfig(database=role_dsn(RECEIVER_WRITER), chain_id=chain_id, name=name)
        )
        config = tuned(ReceiverConfig(chain_id=chain_id, name=name), poll_after_seconds=600.0)
        self.receiver = Receiver(config, self.frames, self.gaps, self.checkpoints)

    @property
    def are_closed(self) -> bool:
        return self.frames.is_closed and self.gaps.is_closed and self.checkpoints.is_closed


class Reader(GapReader):
    is_closed = False

    async def close(self) -> None:
        await super().close()
        self.is_closed = True


class Store(PostgresCheckpointStore):
    is_closed = False

    async def close(self) -> None:
        await super().close()
        self.is_closed = True


class Life:
    """One life of a receiver, cancelled once."""

    def __init__(self, stored: StoredChain, role_dsn: RoleDsn, cancel: CancelAt, name: str) -> None:
        self.stored = stored
        self.chain = stored.chain
        self.role_dsn = role_dsn
        self.cancel = cancel
        self.name = name
        self.handed_on: list[int] = []
        self.after_id = self.chain.mark().id

    async def live(self, *, is_saved_later: bool) -> None:
        await self.begin_at_the_head()
        await self.stored.commit(7)
        await self.stored.commit(6)
        parts = await self.start()
        await self.take(parts, self.chain.mark().id, is_saved_later=is_saved_later)
        live = await self.stored.commit(4)
        parts.frames.put(*self.chain.frames(live))
        await self.take(parts, live.last_id, is_saved_later=is_saved_later)
        await self.stored.commit(12)  # its frames are lost
        shows_it = await self.stored.commit(3)
        parts.frames.put(*self.chain.frames(shows_it))
        await self.take(parts, shows_it.last_id, is_saved_later=is_saved_later)
        await self.stored.commit(2)
        parts.frames.put(self.chain.heartbeat())
        await self.take(parts, self.chain.mark().id, is_saved_later=is_saved_later)
        await self.close(parts)
        assert parts.are_closed, "a cancelled end closes everything"

    async def begin_at_the_head(self) -> None:
        """So that a life costs only what is committed during it."""
        head = self.chain.mark()
        await self.stored.admin.execute(
            "INSERT INTO receiver_checkpoint "
            "(chain_id, receiver, head_delivered, batch_last_id, seal, epoch, login) "
            "VALUES ($1, $2, $3, $3, $4, $5, $6)",
            self.chain.chain_id,
            self.name,
            head.id,
            head.seal,
            head.epoch,
            RECEIVER_WRITER,
        )

    async def start(self) -> Parts:
        for _ in range(TRIES):
            parts = Parts(self.role_dsn, self.chain.chain_id, self.name)
            try:
                await self.cancel.call("start", parts.receiver.__aenter__())
            except Cancelled:
                assert parts.are_closed, "a cancelled start closes everything"
            else:
                return parts
        raise AssertionError("never started")

    async def take(self, parts: Parts, until_id: int, *, is_saved_later: bool) -> None:
        while not self.handed_on or self.handed_on[-1] < until_id:
            run: Run = await self.again("anext", lambda: anext(parts.receiver))
            self.handed_on += [event.id for event in run.events]
            try:
                await self.cancel.call("checkpoint", parts.receiver.checkpoint(run))
            except Cancelled:
                await self.check_place()
                if not is_saved_later or run.last_id == until_id:
                    await self.cancel.call("checkpoint", parts.receiver.checkpoint(run))
            await self.check_place()

    async def close(self, parts: Parts) -> None:
        try:
            await self.cancel.call("end", parts.receiver.__aexit__(None, None, None))
        except Cancelled:
            assert parts.are_closed, "before the cancellation is raised"

    async def again(self, name: str, call: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        for _ in range(TRIES):
            try:
                return await self.cancel.call(name, call())
            except Cancelled:
                await self.check_place()
        raise AssertionError(f"{name} is never done")

    async def check_place(self) -> None:
        """The checkpoint never passes a row that was not handed on."""
        place = await self.place()
        assert place <= (self.handed_on[-1] if self.handed_on else self.after_id)

    async def place(self) -> int:
        found: int = await self.stored.admin.fetchval(
            "SELECT head_delivered FROM receiver_checkpoint WHERE chain_id = $1 AND receiver = $2",
            self.chain.chain_id,
            self.name,
        )
        return found


@pytest.mark.guarantee("G5")
@pytest.mark.parametrize("is_saved_later", [False, True], ids=["again", "with the next run"])
async def test_receiver_cancelled_at_any_await_hands_on_every_row_once(
    stored: StoredChain, role_dsn: RoleDsn, *, is_saved_later: bool
) -> None:
    cancelled_in: set[str] = set()
    at = 0
    while True:
        at += 1
        cancel = CancelAt(at)
        life = Life(stored, role_dsn, cancel, f"cancelled at {at}")
        async with deadline():
            await life.live(is_saved_later=is_saved_later)
        committed = [row_id for row_id in stored.chain.ids if row_id > life.after_id]
        assert life.handed_on == committed, f"cancelled at await {at}, in {cancel.was_in}"
        assert await life.place() == committed[-1], f"cancelled at await {at}"
        cancelled_in.add(cancel.was_in)
        if cancel.is_over:
            break
    assert cancelled_in == {"start", "anext", "checkpoint", "end", ""}
    assert at > 60, "a life has more awaits than that"
