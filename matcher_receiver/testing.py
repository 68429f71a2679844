"""Runs a service that receives without servers, and kills it wherever it waits.

The pytest fixture `orderchain_memory_chain` gives a `MemoryChain`. The receiver is the real one;
the database and the broker are in memory. `docs/simulation.md` shows a test.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from chain_kernel.errors import RetryError
from chain_kernel.frame import encode_frame
from chain_kernel.handlers import check_handler, result_of
from chain_kernel.model import Event
from chain_kernel.tasks import of_others
from chain_kernel.testing.memory_chain import (
    LinkDial,
    LossyLink,
    heartbeat_header,
    sealed,
    slices_of,
)
from chain_kernel.testing.memory_log import MemoryFrameSource, MemoryLog
from chain_kernel.testing.memory_receiver import (
    MemoryCheckpointStore,
    MemoryGapSource,
    MemoryShadowStore,
)
from chain_kernel.testing.memory_sql import SqlDatabase
from chain_kernel.testing.memory_store import MemoryDatabase
from chain_kernel.testing.virtual_loop import (
    NotWorkedOff,
    Process,
    VirtualTime,
    check_alive,
    virtual_clock,
)
from matcher_receiver.config import ReceiverConfig
from matcher_receiver.receiver import Receiver

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Sequence

    from chain_kernel.model import Mark, Run
    from chain_kernel.ports import (
        CheckpointStore,
        FrameSource,
        GapSource,
        ShadowStore,
        SnapshotStore,
    )
    from chain_kernel.testing.memory_sql import AnswerTo, MemoryConnection

    Service = Callable[[Receiver], Awaitable[object]]

__all__ = ["Kill", "MemoryChain", "NotWorkedOff"]

_T = TypeVar("_T")

CHAIN_ID: Final = 1
SLICE_ROWS: Final = 4
"""Rows of a frame, and of a page: few, so that a handful of orders makes several runs."""

_ANSWER_SECONDS_MAX: Final = 0.002

FIRST_COMMIT_US: Final = 1_750_000_000_000_000

WORK_SECONDS: Final = 86_400.0
"""A virtual day for all lives of a service together."""

IDLE_SECONDS: Final = 1.0
"""Virtual: a service under test ends when nothing has come for so long."""

KILLS_MAX: Final = 1_000
"""Enough for the steps of any run; a service that stores no checkpoint would never end."""

_NOT_THE_SERVICE: Final = {"chain_kernel", "matcher_receiver", *sys.stdlib_module_names}


class Kill(NamedTuple):
    """The point at which a service was killed."""

    where: str
    """The line of its own at which it waited, such as `service.py:24 in apply`."""
    handed_id: int
    """The last id that it had been handed."""
    stored_id: int
    """The id of its checkpoint then. Below `handed_id`: a run was in hand."""


class _Receiver(Receiver):
    """Knows whether its service waits for orders."""

    is_waiting = False

    async def __anext__(self) -> Run:
        self.is_waiting = True
        try:
            return await super().__anext__()
        finally:
            self.is_waiting = False


class _Life:
    """One start of a service, in a process that is killed at one of its steps."""

    def __init__(
        self,
        chain: MemoryChain,
        name: str,
        receiver: _Receiver,
        service: Service,
        point: int | None,
    ) -> None:
        self.process = Process("service")
        self.process.at_step = self._step
        self._chain = chain
        self._name = name
        self._receiver = receiver
        self._service = service
        self._point = point
        self._steps = 0
        self._work: Awaitable[object] | None = None
        self._killed: asyncio.Future[Kill] = asyncio.get_running_loop().create_future()

    async def run(self, seconds: float) -> Kill | None:
        """Return where it was killed; None when it has ended by itself. Raises NotWorkedOff."""
        task = self.process.run(self._serve())
        ends: list[asyncio.Future[Any]] = [task, self._killed]
        done, _ = await asyncio.wait(ends, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if not done:
            waits = f"waits at {_where(self._work)}, after id {self._receiver.head_delivered}"
            raise NotWorkedOff(f"the service does not end: it {waits}")
        if self._killed.done():
            return self._killed.result()
        task.result()
        return None

    async def _serve(self) -> None:
        async with self._receiver:
            self._work = self._service(self._receiver)
            try:
                await result_of(self._work)
            finally:
                self._work = None

    def _step(self) -> None:
        if self._work is None or self._killed.done():
            return
        stored = self._chain.checkpoint(self._name)
        handed_id, stored_id = self._receiver.head_delivered, stored.id if stored else 0
        if self._receiver.is_waiting and handed_id <= stored_id:
            return
        self._steps += 1
        if self._steps == self._point:
            self._chain.end(self.process)
            self._killed.set_result(Kill(_where(self._work), handed_id, stored_id))


async def _beside(story: Coroutine[Any, Any, object]) -> None:
    with of_others("the story beside the service"):
        await story


def _where(work: object) -> str:
    """Return the innermost line of the service's own at which `work` waits."""
    found = "its first line"
    while work is not None:
        frame = getattr(work, "cr_frame", None)
        module = "" if frame is None else str(frame.f_globals.get("__name__"))
        if frame is not None and module.partition(".")[0] not in _NOT_THE_SERVICE:
            code = frame.f_code
            found = f"{Path(code.co_filename).name}:{frame.f_lineno} in {code.co_name}"
        work = getattr(work, "cr_await", None)
    return found


class MemoryChain:
    """A chain as a sequencer would commit and publish it, and the ports by which a receiver reads
    it.

    `dial` sets which share of frames is lost, repeated, held back or broken between broker and
    receiver; it may be turned at any time. The same seed draws the same faults. `close` ends what
    `work_off` has left; the fixture calls it.
    """

    def __init__(self, seed: int = 0) -> None:
        self.chain_id = CHAIN_ID
        self.dial = LinkDial()
        self.committed: list[Event] = []
        """All rows: what a receiver has to hand on, in this order."""
        self._seed = seed
        self._random = Random(seed)  # noqa: S311 - faults, not secrets
        self._database = MemoryDatabase(seed)
        self._chain = self._database.create(CHAIN_ID)
        self._frame_key = self._chain.begin_term(self._database.draw_nonce()).frame_key
        self._log = MemoryLog()
        self.is_database_away = False
        """True if the database does not answer; may be set."""
        self._tables = SqlDatabase(self._random)
        # One order of callbacks, so that each life repeats the one before it, up to its end.
        self._time = VirtualTime()

    # -- the sequencer's side ------------------------------------------------------------------

    def commit(self, payloads: Sequence[bytes], *, publish: bool = True) -> list[Event]:
        """Commit orders as one batch, publish it, and return the rows.

        Ids skip numbers, as real ones may. Without `publish` its frames are never sent: only a
        heartbeat, a later frame or the database shows the batch.
        """
        pid = before = self._chain.last_id
        events = []
        for number, payload in enumerate(payloads, start=len(self.committed) + 1):
            row_id = pid + self._random.choice((1, 1, 1, 3))
            events.append(Event(row_id, pid, f"order-{number}", FIRST_COMMIT_US * 1_000, payload))
            pid = row_id
        batch = sealed(
            events,
            chain_id=CHAIN_ID,
            epoch=self._chain.epoch,
            seal_before=self._chain.last_seal,
            committed_at_us=FIRST_COMMIT_US + len(self._chain.batches),
        )
        self._chain.store(batch, before, ())
        self.committed += events
        if publish:
            slices = slices_of(batch, SLICE_ROWS, publisher_nonce=self._chain.nonce)
            self._log.append(
                [encode_frame(header, rows, self._frame_key) for header, rows in slices]
            )
        return events

    def heartbeat(self) -> None:
        """Publish the head: what shows a lost last frame."""
        head, seal = self._chain.last_id, self._chain.last_seal
        header = heartbeat_header(
            head,
            epoch=self._chain.epoch,
            publisher_epoch=self._chain.epoch,
            seal_before=seal,
            publisher_nonce=self._chain.nonce,
        )
        self._log.append([encode_frame(header, (), self._frame_key)])

    @property
    def is_broker_away(self) -> bool:
        """True if the broker does not answer; may be set."""
        return self._log.is_away

    @is_broker_away.setter
    def is_broker_away(self, is_away: bool) -> None:
        self._log.is_away = is_away
        self._log.wake_readers()

    # -- the receiver's side -------------------------------------------------------------------

    def frames(self) -> FrameSource:
        """Return a consumer that the dial affects; each receiver needs its own."""
        return MemoryFrameSource(self._log, LossyLink(self.dial, self._random))

    def gap_source(self) -> GapSource:
        """Return a reader of missing rows; each receiver needs its own."""
        return MemoryGapSource(lambda: self._chain, page_rows=SLICE_ROWS, ask=self._ask)

    def checkpoints(self, receiver: str = "receiver") -> CheckpointStore:
        """Return the store of one receiver's place, which outlives the receiver."""
        return MemoryCheckpointStore(self._database, CHAIN_ID, receiver, self._ask)

    def shadow(self, receiver: str, shadow_of: str) -> ShadowStore:
        """Return the store of a shadow, for `open_receiver(..., shadow_of=...)`."""
        return MemoryShadowStore(self._database, CHAIN_ID, receiver, shadow_of, self._ask)

    def checkpoint(self, receiver: str = "receiver") -> Mark | None:
        """Return what is stored of a receiver's place now."""
        return self._chain.checkpoints.get(receiver)

    @property
    def tables(self) -> dict[str, Any]:
        """The service's own tables, as committed: fill them before, compare them after."""
        return self._tables.tables

    def answer(self, statement: str, function: AnswerTo) -> None:
        """Make a statement of the service do what `function(tables, *arguments)` does.

        There is no SQL here. It returns the statement's rows; a statement without an answer raises
        SettingError.
        """
        self._tables.answer(statement, function)

    async def connect(self) -> MemoryConnection:
        """Return a connection as `asyncpg.connect` does, to be given to `Receiver.checkpoint`, too.

        Outside of a transaction that is refused, as by PostgreSQL's store.
        """
        return self._tables.connect()

    # -- the service under test ----------------------------------------------------------------

    def work_off(
        self,
        service: Service,
        config: ReceiverConfig | None = None,
        *,
        snapshots: SnapshotStore | None = None,
        meanwhile: Coroutine[Any, Any, object] | None = None,
        seconds: float = WORK_SECONDS,
    ) -> list[Kill]:
        """Run `service`, killed and started again, until the chain is worked off.

        It gets a receiver that has started, of `config` (by default one that ends when idle), and
        iterates over it. Its process is killed at its first step, then at its second one, and so on
        until it ends by itself: so at each await while a run is in hand, and right after each
        commit. As with kill -9 no `finally` of it runs; its transactions are rolled back, and what
        it had in memory is gone. Waits for orders with nothing in hand are left out. `meanwhile`
        runs beside it, unharmed: it may commit orders, and turn the dial. All in virtual time, of
        `seconds`: use it in tests that are plain `def`.
        Returns where the kills fell. Raises NotWorkedOff if the service ends before the last order,
        or does not end, and if no kill fell between an order and its checkpoint. Raises what the
        service raises.
        """
        check_handler(service)
        return self._time.run(self._work_off(service, config, snapshots, meanwhile, seconds))

    def close(self) -> None:
        """End what still runs. Killed processes are cleaned up now."""
        self._time.close()

    async def _work_off(
        self,
        service: Service,
        config: ReceiverConfig | None,
        snapshots: SnapshotStore | None,
        meanwhile: Coroutine[Any, Any, object] | None,
        seconds: float,
    ) -> list[Kill]:
        given = config or ReceiverConfig(chain_id=CHAIN_ID, idle_seconds=IDLE_SECONDS)
        name = given.name or "receiver"
        beside = None if meanwhile is None else asyncio.create_task(_beside(meanwhile))
        kills: list[Kill] = []
        end = virtual_clock().time() + seconds
        while True:
            # From one place each life takes the same steps, so that none is left out.
            self._random.seed(f"{self._seed} {self.checkpoint(name)}")
            receiver = _Receiver(
                given,
                self.frames(),
                self.gap_source(),
                self.checkpoints(name),
                virtual_clock(),
                snapshots=snapshots,
                random=self._random,
            )
            point = len(kills) + 1 if len(kills) < KILLS_MAX else None
            life = _Life(self, name, receiver, service, point)
            self._time.killed.append(life.process)
            kill = await life.run(end - virtual_clock().time())
            if kill is not None:
                kills.append(kill)
            elif beside is None or beside.done():
                break
        if beside is not None:
            beside.result()
        if receiver.head_delivered < self._chain.last_id:
            ended = f"ended after id {receiver.head_delivered} of {self._chain.last_id}"
            raise NotWorkedOff(f"the service has {ended}")
        if not any(kill.handed_id > kill.stored_id for kill in kills):
            what = "commit orders before, or in `meanwhile`"
            raise NotWorkedOff(f"no kill fell between an order and its checkpoint: {what}")
        return kills

    def end(self, process: Process) -> None:
        """End the process of a service: what it has open is rolled back."""
        process.pause()
        self._tables.end(process)

    async def _ask(self, work: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        """Do `work` at the database, which takes a moment, and nothing for a killed service."""
        await asyncio.sleep(self._random.uniform(0.0, _ANSWER_SECONDS_MAX))
        check_alive()
        if self.is_database_away:
            raise RetryError("the database is away")
        return await work()
