"""The leader's sessions with PostgreSQL.

Statements go to the server in one message with a COPY: a whole transaction in one round trip.

The simple-query protocol takes several statements in one message, ends the transaction with the
last of them, and allows one of them to be a COPY from the client. It carries no parameters, so the
statements are prepared once per session and called with literals. The literals are written here,
and are numbers and hexadecimal digits whatever the values are.
"""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar
from uuid import UUID

from msgspec import structs

from chain_kernel.clients.database_config import DatabaseConfig
from chain_kernel.clients.pipeline import Pipeline
from chain_kernel.clients.postgres import close_connection, server_identity
from chain_kernel.clients.postgres_errors import DRIVER_ERRORS, sqlstate_of, statement_refusal
from chain_kernel.clients.session import (
    ClosedAtExit,
    Session,
    SessionConfig,
    SyncWaitCancelled,
    check_durability,
    listen_for_cancelled_waits,
    open_connection,
)
from chain_kernel.errors import OrderchainError, RetryError, SchemaError
from chain_kernel.model import ServerIdentity
from chain_kernel.sql import SEQUENCER_WRITER, load_sql, require_version, with_constant
from sequencer.core import ClockWatch
from sequencer.stores.notices import Notices
from sequencer.stores.together import Together

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from chain_kernel.clients.postgres import Connection, Record
    from chain_kernel.clock import Clock
    from chain_kernel.model import Term
    from sequencer.config import SequencerConfig


_Result = TypeVar("_Result")

_SQL: Final = load_sql("sequencer", "queries.sql")
_NAMES: Final = ("commit_batch", "commit_page", "commit_row", "save_mark", "save_reject")


async def prepare(connection: Connection) -> None:
    """Prepare, for the session of `connection`, what `call` may name; once per session."""
    await connection.execute(
        ";".join(f"PREPARE orderchain_{name} AS {_SQL[name]}" for name in _NAMES)
    )


def call(name: str, values: Iterable[object]) -> str:
    """Return the statement that executes the prepared `name` with `values`."""
    return f"EXECUTE orderchain_{name}({','.join(map(literal, values))})"


def literal(value: object) -> str:
    """Return `value` as SQL. Text is sent as the hexadecimal digits of its UTF-8: nothing in it can
    end the literal. Raises TypeError for a type that no statement here takes.
    """
    if value is None:
        return "NULL"
    if type(value) is int:
        return str(value)
    if isinstance(value, bytes):
        return f"'\\x{value.hex()}'::bytea"
    if isinstance(value, str):
        return f"convert_from('\\x{value.encode().hex()}'::bytea, 'UTF8')"
    if isinstance(value, datetime):
        return f"'{value.isoformat()}'::timestamptz"
    raise TypeError(f"no literal for {type(value).__name__}")


_PINNED: Final = {
    "jit": "off",
    # A session that stops in mid-transaction must not hold a row forever.
    "idle_in_transaction_session_timeout": "60s",
    # The statements and their literals are written for these.
    "client_encoding": "UTF8",
    "standard_conforming_strings": "on",
    "default_transaction_read_only": "off",
    "default_transaction_deferrable": "off",
    # The message that a standby was not waited for is only a warning.
    "client_min_messages": "warning",
}
"""Settings of every session, whatever a DBA set for the server, the database or the role."""


_LOCK_TIMEOUT: Final = "100ms"
"""Time that a shared session waits for the lock of one chain's row; that chain then tries again."""

LOCKED: Final = "55P03"
"""lock_not_available: nothing was done, and the connection is as good as before."""

_PAUSE_PER_LEASE: Final = 0.01
"""Time that chains which share sessions wait for each other, to look and to beat together."""


def pause_of(config: SequencerConfig, whose: str) -> float:
    """Return how long the first who asks waits for the other chains of a process."""
    return config.tuning.lease_seconds * _PAUSE_PER_LEASE if whose else 0.0


def _read_once(config: SequencerConfig) -> SequencerConfig:
    """Return `config` with its database as a checked value, for what connects again and again.

    To read the text again would read its files again, and one that is being replaced would be a
    wrong setting, which ends a leader. Raises SettingError.
    """
    return structs.replace(config, database=DatabaseConfig.of(config.database).for_writing())


def _session_config(
    config: SequencerConfig, purpose: str, whose: str = "", **settings: str
) -> SessionConfig:
    """Return the config of a direct session of a sequencer, with settings of its own.

    `whose` names the chains that share it. Each call ends within the deadline of a commit,
    connecting included. A shared one waits only briefly for a lock: all of them wait with it.
    """
    if whose:
        settings["lock_timeout"] = _LOCK_TIMEOUT
    return SessionConfig(
        database=DatabaseConfig.of(config.database),
        application_name=f"orderchain {purpose} {whose or config.chain_id}",
        role=SEQUENCER_WRITER,
        settings={**_PINNED, **settings},
        pooler="refused",
        connect_seconds=config.tuning.connect_seconds,
        statement_seconds=config.tuning.commit_seconds,
        call_seconds=config.tuning.commit_seconds,
    )


class SideSessions(ClosedAtExit):
    """Sessions beside the one that commits, each on the server of a term: of one chain, or many.

    After a fail-over in which the old primary comes back, two servers answer. A session connects
    only to the one of the term that it is used for, and proves the term's row there before its
    first use: two standbys that were promoted separately may have the same timeline.

    A crash loses at most the last beat, which costs nothing, or pages of keys, which are made again
    from their rows: no statement here waits for the disk.
    """

    def __init__(
        self,
        config: SequencerConfig,
        purpose: Literal["lease", "keys"],
        whose: str = "",
        refusal: Callable[[Exception], Exception | None] | None = None,
    ) -> None:
        """`whose` names the chains that share it; `refusal` is called as `Session` does."""
        self._config = _session_config(config, purpose, whose, synchronous_commit="off")
        self._notify_seconds = min(1.0, config.tuning.lease_seconds * _BEAT_OF_LEASE)
        self._refusal = refusal
        self._pause_seconds = pause_of(config, whose)
        self._sessions: dict[ServerIdentity, _SideSession] = {}
        self._closing: set[asyncio.Task[None]] = set()

    async def fetch(self, term: Term, statement: str, *values: object) -> list[Record]:
        """Return the rows of one statement, whose first value is the chain of `term`, and which is
        committed when this returns.

        Raises as `Session.fetch`; RetryError where no host is the server of the term.
        """
        statement = with_constant(statement, term.chain_id)

        async def work(connection: Connection) -> list[Record]:
            rows: list[Record] = await connection.fetch(statement, *values)
            return rows

        return await self._of(term).run(term, work)

    async def write(self, term: Term, *statements: tuple[str, Sequence[object]]) -> list[int]:
        """Run statements in one transaction, each with the chain of `term` and its own values, and
        return how many rows each wrote.

        Raises as `fetch`.
        """

        async def work(connection: Connection) -> list[int]:
            async with connection.transaction():
                ends = [
                    await connection.execute(statement, term.chain_id, *values)
                    for statement, values in statements
                ]
            return [int(end.rpartition(" ")[2]) for end in ends]

        return await self._of(term).run(term, work)

    async def renew(self, term: Term, published_id: int) -> Record:
        """Renew the lease of `term`, in one statement for all that are due. Raises as `fetch`."""
        found = await self._of(term).beats.ask(term.chain_id, (term, published_id))
        if found is None or not found["is_proven"]:
            raise _not_ours(term)
        return found

    async def notify(self, term: Term, frame: bytes) -> None:
        """Notify those who listen to the chain of `term`, in one statement for all that are due.

        Raises as `fetch`.
        """
        await self._of(term).notices.send(term.chain_id, frame)

    async def close(self) -> None:
        """Close them; never raises, never waits beyond their deadline."""
        sessions = list(self._sessions.values())
        self._sessions.clear()
        await asyncio.gather(*(each.close() for each in sessions), *self._closing)

    def _of(self, term: Term) -> _SideSession:
        found = self._sessions.pop(term.server, None)
        if found is not None:
            self._sessions[term.server] = found  # the last to be used is the last to be closed
        else:
            found = self._sessions[term.server] = _SideSession(
                self._config,
                self._refusal,
                term.server,
                self._pause_seconds,
                self._notify_seconds,
            )
            if len(self._sessions) > _SERVERS_MAX:
                oldest = self._sessions.pop(next(iter(self._sessions)))
                closing = asyncio.ensure_future(oldest.close())
                self._closing.add(closing)
                closing.add_done_callback(self._closing.discard)
        return found


_SERVERS_MAX: Final = 3
"""Chains that share sessions are taken over one by one: for a while, some are still led on the
server before, or on the one before that."""


class _SideSession:
    """A session on one server, and the terms whose rows it has seen on its connection."""

    def __init__(
        self,
        config: SessionConfig,
        refusal: Callable[[Exception], Exception | None] | None,
        server: ServerIdentity,
        pause_seconds: float,
        notify_seconds: float,
    ) -> None:
        config = structs.replace(config, is_of_one_chain=True)
        self.session = Session(config, prepare=self._begin, refusal=refusal, server=server)
        self.beats = Together(self._renew, pause_seconds)
        self.notices = Notices(self.session, config, notify_seconds)
        self._proven: dict[int, bytes] = {}

    async def run(self, term: Term, work: Callable[[Connection], Awaitable[_Result]]) -> _Result:
        """Return what `work` returns for a connection to the server of `term`."""

        async def proven(connection: Connection) -> _Result:
            if self._proven.get(term.chain_id) != term.nonce:
                held = (term.chain_id, term.epoch, term.nonce)
                if await connection.fetchval(_SQL["prove_term"], *held) is None:
                    raise _not_ours(term)
                self._proven[term.chain_id] = term.nonce
            return await work(connection)

        return await self.session.run(proven)

    async def close(self) -> None:
        """End what is under way, and close the session."""
        await self.beats.close()
        await self.notices.close()
        await self.session.close()

    async def _renew(self, beats: Mapping[int, tuple[Term, int]]) -> dict[int, Record]:
        """Return by chain what `renew_leases` returns; it proves each term itself."""
        due = [(each.chain_id, each.epoch, each.nonce, at) for each, at in beats.values()]
        columns = [list(column) for column in zip(*due, strict=True)]
        found: list[Record] = await self.session.run(
            lambda connection: connection.fetch(_SQL["renew_leases"], *columns)
        )
        return {row["chain_id"]: row for row in found}

    async def _begin(self, connection: Connection) -> None:
        self._proven.clear()
        await pin(connection)


def _not_ours(term: Term) -> RetryError:
    return RetryError(
        f"chain {term.chain_id}: not the server of the term: it has no epoch {term.epoch} of ours "
        f"({term.server})"
    )


async def pin(connection: Connection) -> None:
    """Pin settings that only some server versions know, so that a connect cannot ask for them."""
    await connection.execute(_SQL["pin_newer"])


_ENCODING: Final = "UTF8"

GIVEN_UP: Final = "the connection to the database was given up"


class LeaderSession:
    """A connection that is checked and prepared when it is made, and never used after an error.

    Its current user holds `lock`: between two commits, the publisher records skipped ranges over
    the same connection, and other chains commit. It is opened once: after an error the next one is
    another session, so a term that was taken over on this one is not continued there.
    """

    def __init__(self, config: SequencerConfig, clock: Clock, whose: str = "") -> None:
        """`whose` names the chains that share it."""
        self._config = config
        # No statement of a commit reads a partition, and planning each would double its cost.
        self._session_config = _session_config(config, "sequencer", whose, plan_cache_mode="auto")
        self._clock = clock
        self._clock_watch = ClockWatch()
        self._connection: Connection | None = None
        self._pipeline: Pipeline | None = None
        self._is_wait_cancelled = False
        self.is_interrupted = False
        """True if a caller left in mid-statement; the answer may still be on its way."""
        self.lock = asyncio.Lock()
        self.database_id = UUID(int=0)
        """The id of the database that was reached."""
        self.server = ServerIdentity(0, 0)
        """The server that was reached."""
        self.allowed = ""
        """Number of connections that the server allows to this login."""

    @property
    def is_open(self) -> bool:
        """True if there is a connection that was neither given up nor lost."""
        # Python's own loop drops what is written to a lost one without an error.
        return self._connection is not None and not self._connection.is_closed()

    @property
    def is_idle(self) -> bool:
        """True if `idle` would not wait."""
        return self._pipeline is not None and self._pipeline.is_idle and not self.is_interrupted

    @property
    def pipeline(self) -> Pipeline:
        """The pipeline for commits. Raises RetryError when there is no connection any more."""
        if self._pipeline is None or not self.is_open:
            raise RetryError(GIVEN_UP)
        return self._pipeline

    async def open(self) -> None:
        """Connect. Raises ConnectError, SchemaError, DurabilityError, ClockError, RetryError."""
        connection = await open_connection(self._session_config)
        try:
            async with asyncio.timeout(self._config.tuning.commit_seconds):
                await pin(connection)
                self.database_id = await self._check(connection)
                self.server = await server_identity(connection)
                await prepare(connection)
                listen_for_cancelled_waits(connection, self._on_cancelled_wait)
        except BaseException as error:
            connection.terminate()
            if isinstance(error, DRIVER_ERRORS):
                raise self.refusal("the take-over", error) from error
            raise
        self._connection, self._pipeline = connection, Pipeline(connection)

    async def idle(self) -> Connection:
        """Return the connection once nothing is under way on it. Raises RetryError."""
        if self._pipeline is not None:
            await self._pipeline.idle()
        if self._connection is None or not self.is_open:
            raise RetryError(GIVEN_UP)
        if self.is_interrupted:
            # The driver waits for the end of what it cancelled; the pipeline would take that answer
            # for the answer to a commit of its own.
            await self._connection.execute(_SQL["ping"])
            self.is_interrupted = False
        return self._connection

    async def fetch_row(self, name: str, *values: object) -> Record | None:
        """Return the first row of a statement; else as `fetch`."""
        rows = await self.fetch(name, *values)
        return rows[0] if rows else None

    async def fetch(self, name: str, *values: object) -> list[Record]:
        """Return the rows of one statement. Raises RetryError, and gives the connection up."""
        async with self.lock:
            return await self.fetch_locked(name, *values)

    async def fetch_locked(self, name: str, *values: object) -> list[Record]:
        """Do as `fetch`, for a caller that holds the lock: its values depend on who leads."""
        statement = _SQL[name]
        # The first is the chain, or all of them: as a value, its plan would be one for all chains.
        if values and isinstance(values[0], int):
            statement, values = with_constant(statement, values[0]), values[1:]
        try:
            async with asyncio.timeout(self._config.tuning.commit_seconds):
                connection = await self.idle()
                rows: list[Record] = await connection.fetch(statement, *values)
                self.check_replicated()
                return rows
        except DRIVER_ERRORS as error:
            self.abandon_after(error)
            raise self.refusal(name, error) from error
        except BaseException:
            self.is_interrupted = True
            raise

    def refusal(self, what: str, error: Exception) -> Exception:
        """Return what to raise if `what` raised `error`; see `statement_refusal`."""
        config = self._session_config
        return statement_refusal(error, config.database, config.role, what)

    def check_replicated(self) -> None:
        """Raise SyncWaitCancelled if a statement succeeded, but was not replicated.

        Call it after each statement of the driver that writes. The driver reports a warning before
        it returns the result that comes after it.
        """
        if self._is_wait_cancelled:
            raise SyncWaitCancelled

    def _on_cancelled_wait(self, _: Connection) -> None:
        self._is_wait_cancelled = True

    def abandon_after(self, error: BaseException) -> None:
        """Give the connection up, unless all that went wrong is a lock that was not had in time."""
        if sqlstate_of(error) != LOCKED:
            self.abandon()

    def abandon(self) -> None:
        """Give the connection up at once, without notifying the server."""
        connection = self._take()
        if connection is not None:
            connection.terminate()

    async def close(self) -> None:
        """Close the connection within a second, or drop it."""
        connection = self._take()
        if connection is not None:
            await close_connection(connection)

    def _take(self) -> Connection | None:
        """Return the connection, which is not used again."""
        connection, self._connection, self._pipeline = self._connection, None, None
        return connection

    async def _check(self, connection: Connection) -> UUID:
        """Return the database id. Raises SchemaError, DurabilityError, ClockError."""
        server = await connection.fetchrow(_SQL["server"])
        if server["server_encoding"] != _ENCODING:
            # Characters of a key that it cannot hold would show only in mid-commit.
            raise SchemaError("encoding of the database", server["server_encoding"], _ENCODING)
        self._clock_watch.check_beside(self._clock.wall_ns(), server["now_us"])
        self.allowed = server["allowed"]
        row = await connection.fetchrow(_SQL["schema_version"])
        require_version(row)
        if not self._config.unsafe_durability:
            check_durability(dict(await connection.fetchrow(_SQL["durability"])))
        database_id: UUID = row["database_id"]
        return database_id


class NewestServer:
    """The newest server that a process has seen: one on a lower timeline was replaced.

    What was committed since is not on that one. A new process accepts it: somebody may have gone
    back on purpose.
    """

    def __init__(
        self,
        config: SequencerConfig,
        clock: Clock,
        whose: str = "",
        on_refusal: Callable[[Exception], None] | None = None,
    ) -> None:
        """Arguments as of `CommitLine`."""
        self._config = _read_once(config)
        self._clock = clock
        self._whose = whose
        self._on_refusal = on_refusal
        self._seen = ServerIdentity(0, 0)
        self._asks = Together(self._ask)
        self._answered_ns: int | None = None

    def is_replaced(self, server: ServerIdentity) -> bool:
        """Return whether `server` is known to be replaced. A standby has no timeline of its own."""
        is_other = server.system_identifier != self._seen.system_identifier
        return not is_other and 0 < server.timeline < self._seen.timeline

    def require_newest(self, server: ServerIdentity) -> None:
        """Raise RetryError where `server` was replaced."""
        if self.is_replaced(server):
            raise RetryError(
                f"the database is on timeline {server.timeline}, which timeline "
                f"{self._seen.timeline} has replaced: an old primary answers; end it, or start "
                "again to lead there"
            )

    def see(self, server: ServerIdentity) -> None:
        """Remember `server`. Raises RetryError where it was replaced."""
        self.require_newest(server)
        if server.timeline:
            self._seen = server

    async def ask(self) -> None:
        """Ask each of several hosts before a take-over: looks go on over one connection, and
        another host may have been promoted since.

        Those who ask while an answer is awaited, or within a beat of the lease after it, share it:
        where a host is silent, it takes a second. Raises what `LeaderSession.open` does; RetryError
        where it is closed meanwhile.
        """
        if not DatabaseConfig.of(self._config.database).for_writing().may_move:
            return
        await self._asks.ask(self._config.chain_id, None)

    async def _ask(self, _: Mapping[int, None]) -> dict[int, None]:
        beat_ns = int(self._config.tuning.lease_seconds * _BEAT_OF_LEASE * 1e9)
        now_ns = self._clock.monotonic_ns()
        if self._answered_ns is not None and now_ns - self._answered_ns < beat_ns:
            return {}
        session = LeaderSession(self._config, self._clock, self._whose)
        try:
            await session.open()
        except OrderchainError as error:
            if self._on_refusal is not None:
                self._on_refusal(error)
            raise
        await session.close()
        self.see(session.server)
        self._answered_ns = self._clock.monotonic_ns()
        return {}

    async def close(self) -> None:
        """End what is under way."""
        await self._asks.close()


_BEAT_OF_LEASE: Final = 0.2


class CommitLine:
    """The connection for commits: of one chain, or of several, whose commits take turns.

    The first that needs it after an error opens a new session, for all; so does the first that
    needs it after a newer server was seen.
    """

    def __init__(
        self,
        config: SequencerConfig,
        clock: Clock,
        whose: str = "",
        on_refusal: Callable[[Exception], None] | None = None,
        newest: NewestServer | None = None,
    ) -> None:
        """`whose` names its chains; `on_refusal` is called with what a connect raised; `newest` is
        that of all lines of the process.
        """
        self._config = _read_once(config)
        self._clock = clock
        self._whose = whose
        self._on_refusal = on_refusal
        self._session: LeaderSession | None = None
        self._turn = asyncio.Lock()
        self._connects = 0
        self._failed: Exception | None = None  # what the last connect raised
        self.newest = newest or NewestServer(config, clock, whose)
        self.looks = Together(self._look, pause_of(config, whose))
        """Looks at who leads, in one statement for all chains that ask here at about the same
        time."""
        self.allowed = ""
        """Number of connections that the server allows; empty before the first."""

    @property
    def is_open(self) -> bool:
        """True if there is a connection that was not given up."""
        return self._session is not None and self._session.is_open

    async def session(self) -> LeaderSession:
        """Return the session of now, which is opened if there is none; raises what `open` does."""
        connects = self._connects
        async with self._turn:
            if self._session is not None and self._session.is_open:
                if not self.newest.is_replaced(self._session.server):
                    return self._session
                self._session.abandon()
            if self._failed is not None and self._connects != connects:
                # Somebody tried while this one waited: the next would take as long, for each.
                raise self._failed.with_traceback(None)
            self._failed = None
            session = LeaderSession(self._config, self._clock, self._whose)
            try:
                await session.open()
                try:
                    self.newest.see(session.server)
                except RetryError:
                    session.abandon()
                    raise
            except OrderchainError as error:
                self._failed = error
                if self._on_refusal is not None:
                    self._on_refusal(error)
                raise
            finally:
                self._connects += 1
            self._session, self.allowed = session, session.allowed
            return session

    async def _look(self, chains: Mapping[int, None]) -> dict[int, dict[str, Any]]:
        rows = await (await self.session()).fetch("look", list(chains))
        found = [dict(row) for row in rows]
        return {row.pop("chain_id"): row for row in found}

    async def close(self) -> None:
        """Close the connection within a second, or drop it."""
        await asyncio.gather(self.looks.close(), self.newest.close())
        if self._session is not None:
            await self._session.close()
