"""The receiver's rows in PostgreSQL: checkpoint, gap ledger, reported heads."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from chain_kernel.clients.database_config import DatabaseConfig
from chain_kernel.clients.postgres import fetch_of_owner
from chain_kernel.clients.postgres_errors import DRIVER_ERRORS, schema_refusal, sqlstate_of
from chain_kernel.clients.session import ClosedAtExit, Session, SessionConfig
from chain_kernel.clock import Backoff
from chain_kernel.errors import (
    ChainMissing,
    CheckpointLost,
    ForeignDatabase,
    OrderchainError,
    RetryError,
    SettingError,
    StillHalted,
)
from chain_kernel.model import Mark, StoredState
from chain_kernel.ports import NO_STATES
from chain_kernel.sql import RECEIVER_WRITER, load_sql, require_version
from matcher_receiver.cancellable_wait import AWAY

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from chain_kernel.errors import HaltError
    from chain_kernel.model import Gap
    from matcher_receiver.config import CheckpointConfig


_log = logging.getLogger(__name__)

_AGAIN_SECONDS_MAX: Final = 2.0
"""The pause after a write that failed because the database is away."""


class WriteBehind:
    """Writes repeatedly as long as something waits, in a task that ends when nothing does.

    Once the database refuses a write permanently, none is retried. On close, one more write is
    tried, within the deadline.
    """

    def __init__(
        self,
        what: str,
        *,
        waits: Callable[[], bool],
        write: Callable[[], Awaitable[None]],
        gather_seconds: float = 0.0,
        pause_seconds: float = 0.0,
    ) -> None:
        self._what = what
        self._waits = waits
        self._write_once = write
        self._gather_seconds = gather_seconds
        self._pause_seconds = pause_seconds
        self._backoff = Backoff(_AGAIN_SECONDS_MAX, _AGAIN_SECONDS_MAX)
        self._task: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()
        self.is_refused = False
        """True if the database has refused a write permanently."""

    def wake(self) -> None:
        """Ensure that what waits is written; never waits, never raises."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._write(), name=f"orderchain {self._what}")

    async def close(self, seconds: float) -> None:
        """Write what waits, within `seconds`, twice that at most; never raises."""
        self._closing.set()
        if self._task is not None:
            await asyncio.wait([self._task], timeout=seconds)
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _write(self) -> None:
        while self._waits() and not self.is_refused:
            await self._rest(self._gather_seconds)
            try:
                await self._write_once()
            except AWAY as error:
                _log.warning("%s, again: %s", self._what, error)
                if self._closing.is_set():
                    return
                await self._rest(self._backoff.next_seconds())
            except OrderchainError as error:
                self.is_refused = True
                _log.error("no %s: %s", self._what, error)
            else:
                await self._rest(self._pause_seconds)

    async def _rest(self, seconds: float) -> None:
        """Wait, unless it is time to end."""
        if seconds:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._closing.wait()


_SQL: Final = load_sql("matcher_receiver", "queries.sql")

_NO_SUCH_CHAIN: Final = "23503"

LINGER_SECONDS: Final = 2.0
"""Time that a store keeps its connection after the last statement: a receiver that checkpoints each
second logs in once, and one whose chain is idle holds none of the role's few connections."""


class StoredReceiver(ClosedAtExit):
    """The base of a receiver's stores, with the role `receiver_writer`.

    It uses one connection while there is something to store, and a second one for gaps.
    """

    is_shadow = False

    def __init__(self, config: CheckpointConfig) -> None:
        self._config = config
        self._session = self._new_session()
        self._gaps = GapRecorder(config, self._new_session())
        self.database_id: UUID | None = None
        """The id of this database; None before it was read."""

    @property
    def chain_id(self) -> int:
        """The chain of the receiver."""
        return self._config.chain_id

    @property
    def receiver(self) -> str:
        """The receiver's name."""
        return self._config.name

    async def _load(self) -> Any:  # noqa: ANN401 - a record of asyncpg, which is untyped
        """Return the row of the query `load`.

        Raises SchemaError, ConnectError, RetryError; SettingError if the name is another login's,
        or a shadow's; StillHalted for a receiver that has halted.
        """
        rows = await self._fetch("load")
        row: Any = rows[0] if rows else None
        require_version(row)
        self.database_id = UUID(row["database_id"])
        if row["held_by"] is not None:
            holder = f"the database login {row['held_by']} holds it, docs/permissions.md"
            expected = f"one of this login's own ({holder})"
            raise SettingError("receiver's name", self._config.name, expected)
        if row["shadow_of"] is not None and not self.is_shadow:
            expected = f"none of a shadow of {row['shadow_of']!r} (chainctl receivers forget)"
            raise SettingError("receiver's name", self._config.name, expected)
        if row["reason"] is not None:
            config = self._config
            where = row["halted_at_id"], row["halted_at"]
            found = str(row["detail"]).removeprefix(f"chain {config.chain_id}: ")
            detail = f"{row['reason']}: {found}"
            raise StillHalted(config.chain_id, config.name, *where, detail)
        await self._fetch("end_gaps")
        return row

    async def _fetch(self, query: str, *values: object) -> Sequence[Any]:
        """Return the rows of a named query of this receiver; see `Session.fetch`.

        Raises ChainMissing, too.
        """
        config = self._config
        return await self._session.fetch(_SQL[query], config.chain_id, config.name, *values)

    async def record_halt(self, error: HaltError, at_id: int) -> None:
        """Store that the receiver has halted."""
        await self._fetch("halt", at_id, type(error).__name__, str(error))

    async def _put_states(self, waiting: WaitingStates) -> None:
        """Write what waits, if anything does."""
        states = waiting.all()
        if not states:
            return
        columns = ([getattr(each, name) for each in states] for name in ("id", "group", "digest"))
        await self._fetch("put_states", *columns)
        waiting.remove(states)

    def record_gap(self, gap: Gap) -> None:
        """Store `gap` in the background."""
        self._gaps.record(gap)

    async def close(self) -> None:
        """Write what waits and close; waits for twice `close_seconds` at most.

        Raises:
            SettingError: in another event loop or thread than the one that opened it.
        """
        self._session.home.check()
        await self._gaps.close()
        await self._session.close()

    def _new_session(self) -> Session:
        config = self._config
        return Session(
            SessionConfig(
                database=DatabaseConfig.of(config.database),
                application_name="orderchain receiver",
                role=RECEIVER_WRITER,
                settings={
                    "default_transaction_read_only": "off",
                    # No statement reads a partition, and planning each would double its cost.
                    "plan_cache_mode": "auto",
                },
                # A place that a standby may lack is stored again, until the standby has it.
                watches_standby=True,
                connect_seconds=config.connect_seconds,
                statement_seconds=config.statement_seconds,
                close_seconds=config.close_seconds,
                linger_seconds=LINGER_SECONDS,
                busy_seconds=config.busy_seconds,
            ),
            refusal=self._missing_chain,
        )

    def _missing_chain(self, error: Exception) -> ChainMissing | None:
        return ChainMissing(self._config.chain_id) if sqlstate_of(error) == _NO_SUCH_CHAIN else None


STATES_MAX: Final = 100_000
"""States that wait while the database is away, about 200 bytes each. The oldest are dropped."""


class WaitingStates:
    """States that wait to be written. Each was at its order once: the last digest counts."""

    def __init__(self, receiver: str) -> None:
        self._receiver = receiver
        self._states: dict[tuple[int, str], StoredState] = {}
        self._has_dropped = False

    def add(self, states: Iterable[StoredState]) -> None:
        """Keep states, without the oldest where there are too many."""
        for state in states:
            self._states[state.id, state.group] = state
        while len(self._states) > STATES_MAX:
            del self._states[next(iter(self._states))]
            if not self._has_dropped:
                self._has_dropped = True
                _log.warning(
                    "receiver %r: more than %d states wait for the database: the oldest are lost",
                    self._receiver, STATES_MAX,
                )  # fmt: skip

    def all(self) -> list[StoredState]:
        """Return what waits, the oldest first."""
        return [*self._states.values()]

    def remove(self, written: Iterable[StoredState]) -> None:
        """Forget what was written, unless it was replaced meanwhile."""
        for state in written:
            if self._states.get((state.id, state.group)) is state:
                del self._states[state.id, state.group]


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

GATHER_SECONDS: Final = 0.2
"""Time between two writes: gaps come in bursts, and one statement takes all that have gathered."""


class GapRecorder:
    """The stored ledger of one receiver: its last `gaps_kept` gaps.

    Gaps that were not yet written when the process ends are not stored: the ledger shows people
    what happened, and nothing is decided by it. Closes the session, which is its own.
    """

    def __init__(self, config: CheckpointConfig, session: Session) -> None:
        self._config = config
        self._session = session
        # By after_id: the last entry of a place counts. Bounded; the oldest are dropped first.
        self._waiting: dict[int, Gap] = {}
        self._behind = WriteBehind(
            f"gap ledger of chain {config.chain_id}",
            waits=lambda: bool(self._waiting),
            write=self._write,
            gather_seconds=GATHER_SECONDS,
        )

    def record(self, gap: Gap) -> None:
        """Store `gap` in the background; never waits, never raises."""
        if self._behind.is_refused:
            return
        self._waiting.pop(gap.after_id, None)
        self._waiting[gap.after_id] = gap
        if len(self._waiting) > self._config.gaps_kept:
            # The table keeps no more than this: it would trim the oldest at once.
            self._waiting.pop(next(iter(self._waiting)))
        self._behind.wake()

    async def close(self) -> None:
        """Write what waits, within `close_seconds`, and close; never raises."""
        await self._behind.close(self._config.close_seconds)
        await self._session.close()

    async def _write(self) -> None:
        gaps = list(self._waiting.values())
        await self._store(gaps)
        for gap in gaps:
            # A newer entry of the same place may have come meanwhile.
            if self._waiting.get(gap.after_id) is gap:
                del self._waiting[gap.after_id]

    async def _store(self, gaps: list[Gap]) -> None:
        config = self._config
        await self._session.fetch(
            _SQL["record_gaps"],
            config.chain_id,
            config.name,
            [gap.after_id for gap in gaps],
            [gap.until_id for gap in gaps],
            [gap.cause for gap in gaps],
            [gap.outcome for gap in gaps],
            [gap.source for gap in gaps],
            [gap.rows for gap in gaps],
            [_EPOCH + timedelta(microseconds=gap.found_at_ns // 1_000) for gap in gaps],
            [timedelta(microseconds=gap.duration_ns // 1_000) for gap in gaps],
        )
        await self._session.fetch(_SQL["trim_gaps"], config.chain_id, config.name, config.gaps_kept)


REPORT_SECONDS: Final = 1.0
"""Time between two reports: what operators see is at most this old, and each receiver costs one
small statement per interval while it moves."""


class PostgresHeadReports(StoredReceiver):
    """Implements CheckpointStore of `chain_kernel.ports` for a place that is kept elsewhere.

    The role `receiver_writer` is enough. With `reports_head=False` only gaps and halts are stored:
    a head that is reported and never moves again keeps old rows from being archived. Gaps of
    earlier processes that it passes then become filled ones, since no stored place shows it.
    """

    keeps_place = False

    def __init__(self, config: CheckpointConfig, *, reports_head: bool = True) -> None:
        super().__init__(config)
        self._reports_head = reports_head
        self._waiting: Mark | None = None  # only the last place counts
        self._states = WaitingStates(config.name)
        # Where gaps of earlier processes end, in order, while no place is stored.
        self._unfilled: list[int] = []
        self._behind = WriteBehind(
            f"head report of chain {config.chain_id}",
            waits=lambda: self._waiting is not None,
            write=self._write,
            pause_seconds=REPORT_SECONDS,
        )

    async def load(self) -> Mark | None:
        """Return what was reported last."""
        row = await self._load()
        if row["is_report"] is False:
            raise self._taken()
        if not self._reports_head:
            found = await self._fetch("unfilled_gaps")
            self._unfilled = [gap["until_id"] for gap in found]
        return _mark_of(row)

    async def save(
        self,
        first_pid: int,
        end: Mark,
        connection: object | None = None,
        states: Mapping[str, bytes] = NO_STATES,
    ) -> None:
        """Store `end` and the states there in the background."""
        self._session.home.check()
        del first_pid, connection
        if self._reports_head:
            self._states.add(StoredState(end.id, *each) for each in states.items())
        passes_gap = bool(self._unfilled) and end.id >= self._unfilled[0]
        if (self._reports_head or passes_gap) and not self._behind.is_refused:
            self._waiting = end
            self._behind.wake()

    async def close(self) -> None:
        """Write what waits and close, as the other stores; three times `close_seconds` at most."""
        self._session.home.check()
        await self._behind.close(self._config.close_seconds)
        await super().close()

    async def _write(self) -> None:
        done = self._waiting
        if done is not None:
            await self._store(done)
            if self._waiting is done:
                self._waiting = None

    async def _store(self, done: Mark) -> None:
        if not self._reports_head:
            await self._fetch("fill_gaps", done.id)
            self._unfilled = [until_id for until_id in self._unfilled if until_id > done.id]
            return
        # Before the place: a shadow takes it that no state up to there comes later.
        await self._put_states(self._states)
        if not await self._fetch("report", *_values_of(done)):
            raise self._taken()

    def _taken(self) -> SettingError:
        expected = "one under which no receiver keeps its checkpoint in this database"
        return SettingError("receiver's name", self._config.name, expected)


_OWN_DATABASE: Final = "one to the database that keeps the checkpoint"

IN_DOUBT_MAX: Final = 16
"""Saves whose outcome is not known. Each is a try whose answer was lost with its connection; a
caller that loses more of them in a row has stopped looking."""


class PostgresCheckpointStore(StoredReceiver):
    """Implements CheckpointStore of `chain_kernel.ports`.

    A save in the caller's transaction uses none of its own connections.
    """

    keeps_place = True

    def __init__(self, config: CheckpointConfig) -> None:
        super().__init__(config)
        self._in_doubt: deque[Mark] = deque(maxlen=IN_DOUBT_MAX)

    async def load(self) -> Mark | None:
        """Return the stored place, None for a receiver that never existed.

        Raises SchemaError, ConnectError, RetryError; StillHalted for a receiver that has halted;
        ForeignDatabase for a place that was stored in another database and carried here;
        SettingError if another receiver of this name reports a place that it keeps elsewhere.
        """
        row = await self._load()
        config = self._config
        if row["is_report"]:
            # What that one has processed is not in this one's state: it would be skipped.
            expected = "one that reports no place that is kept elsewhere"
            raise SettingError("receiver's name", config.name, expected)
        if row["stored_in"] not in (None, row["database_id"]):
            raise ForeignDatabase(config.chain_id, row["stored_in"], row["database_id"])
        return _mark_of(row)

    async def save(
        self,
        first_pid: int,
        end: Mark,
        connection: Any | None = None,  # noqa: ANN401
        states: Mapping[str, bytes] = NO_STATES,
    ) -> None:
        """Move the place from `first_pid` to `end`, and store the states there.

        `connection` is an asyncpg connection of the caller inside its transaction: nothing is
        stored until that commits, and what it raises is the caller's own. Raises SettingError for
        one to another database than that of the place, and in another event loop.
        """
        self._session.home.check()
        if end.id < first_pid:
            raise SettingError("end of a checkpoint", end.id, f"a place from {first_pid} on")
        if connection is None:
            await self._save_alone(first_pid, end, states)
            return
        if not connection.is_in_transaction():
            # It would be stored at once: after a crash, the effect of the run is repeated or lost.
            expected = "one in a transaction: the place is stored with the effect of the run"
            raise SettingError("connection", "outside of a transaction", expected)
        here = None if self.database_id is None else str(self.database_id)
        await self._move(partial(self._fetch_with, connection), first_pid, end, states, here)

    async def _save_alone(self, first_pid: int, end: Mark, states: Mapping[str, bytes]) -> None:
        try:
            await self._move(self._fetch, first_pid, end, states)
        except BaseException as error:
            # If the answer was lost, or the wait for it cancelled, the statement may still land.
            if isinstance(error, RetryError) or not isinstance(error, OrderchainError):
                self._in_doubt.append(end)
            raise
        self._in_doubt.clear()

    async def _move(
        self,
        fetch: Callable[..., Awaitable[Sequence[Any]]],
        first_pid: int,
        end: Mark,
        states: Mapping[str, bytes],
        here: str | None = None,
    ) -> None:
        """Move the place, from where an earlier save has put it if that was in doubt.

        The place is read after the compare-and-set has failed, never before: until then a statement
        that was given up may still land. No other could have moved the place to the same end
        without having been where we were. `here` is the only database to store it in; None: any.
        """
        # As texts: the connection may be the caller's own, with codecs of its own.
        digests = [digest.hex() for digest in states.values()]
        values = *_values_of(end), here, [*states], digests
        if await fetch("save", first_pid, *values):
            return
        (row,) = await fetch("load")
        if here not in (None, row["database_id"]):
            raise SettingError("connection", "one to another database", _OWN_DATABASE)
        found = _mark_of(row)
        if (
            found is None
            or found not in self._in_doubt
            or not await fetch("save", found.id, *values)
        ):
            found_id = None if found is None else found.id
            config = self._config
            raise CheckpointLost(config.chain_id, config.name, first_pid, found_id)

    async def _fetch_with(self, connection: Any, query: str, *values: object) -> Sequence[Any]:  # noqa: ANN401
        # The connection is the caller's, and so are its errors: the caller has to roll back anyway.
        config = self._config
        given = config.chain_id, config.name, *values
        try:
            return await fetch_of_owner(
                connection, _SQL[query], *given, timeout=config.statement_seconds
            )
        except DRIVER_ERRORS as error:
            if schema_refusal(error):
                found = "one to a database without chains"
                raise SettingError("connection", found, _OWN_DATABASE) from error
            raise


def _values_of(end: Mark) -> tuple[object, ...]:
    return end.id, end.batch_last_id, end.seal.hex(), end.epoch


def _mark_of(row: Any) -> Mark | None:  # noqa: ANN401 - a record of asyncpg, which is untyped
    if row["head_delivered"] is None:
        return None
    return Mark(
        id=row["head_delivered"],
        batch_last_id=row["batch_last_id"],
        seal=bytes.fromhex(row["seal"]),
        epoch=row["epoch"],
    )
