"""A session with PostgreSQL that is opened when it is needed, and a set of such sessions.

It also knows how durable a commit is: settings that are safe, and waits for a standby that were
given up. A server without `fsync`, `full_page_writes` or `synchronous_commit` may lose what it has
committed. A server that waits for a standby may be ordered to stop waiting, and then answers with
success.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import asynccontextmanager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeVar
from weakref import WeakKeyDictionary

from msgspec import Struct
from msgspec.structs import force_setattr

from chain_kernel.clients.database_config import PINNED, DatabaseConfig
from chain_kernel.clients.postgres import (
    CLOSE_SECONDS,
    close_connection,
    connect,
    require_sight,
    server_identity,
)
from chain_kernel.clients.postgres_errors import (
    DRIVER_ERRORS,
    SERVER_ERRORS,
    PoolerFound,
    SeveralPrimaries,
    is_too_many_connections,
    read_only_refusal,
    schema_refusal,
    statement_refusal,
)
from chain_kernel.clock import Backoff
from chain_kernel.errors import ConnectError, DurabilityError, RetryError
from chain_kernel.sql import AUDITOR, GAP_READER, NUMBERED, chain_tables, with_constant
from chain_kernel.tasks import HomeLoop
from chain_kernel.text import reason_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
    from random import Random

    from chain_kernel.clients.postgres import Connection, LogMessage
    from chain_kernel.model import ServerIdentity


_SAFE: Final = {
    "fsync": {"on"},
    "full_page_writes": {"on"},
    "synchronous_commit": {"on", "local", "remote_write", "remote_apply"},
}

_CONNECT_SHARE: Final = 0.75
"""The share of a call's deadline that a connect may take."""

_SYNC_WAIT_ROUTINE: Final = "SyncRepWaitForLSN"
"""The function of the server that reports, only by a warning (01000) in its own language, that it
gave up a wait for a synchronous standby. Other warnings, such as one of a trigger, or that the
database must be vacuumed, mean nothing for a commit."""


_SERVERS: Final[WeakKeyDictionary[Any, ServerIdentity]] = WeakKeyDictionary()
"""By connection, for those that stay with the newest primary."""

_NEWEST: Final[dict[int, ServerIdentity]] = {}
"""By system identifier: the newest primary that this process ever saw."""


def require_newest(found: ServerIdentity) -> None:
    """Raise RetryError for a primary that was replaced by one that this process has seen.

    What is claimed, decided or confirmed there would be finished on another server, or never be;
    what is read there may never have been acknowledged. A standby has no timeline of its own.
    """
    newest = _NEWEST.setdefault(found.system_identifier, found)
    if _was_replaced(found):
        raise RetryError(
            f"a primary that was replaced ({found}) answers, not the new ({newest}); if that is "
            "meant, as with a restored backup, restart this process"
        )
    if found.timeline > newest.timeline:
        _NEWEST[found.system_identifier] = found


def _was_replaced(found: ServerIdentity) -> bool:
    newest = _NEWEST.get(found.system_identifier, found)
    return 0 < found.timeline < newest.timeline


def is_replaced(connection: Connection) -> bool:
    """Return whether a newer primary than that of `connection` is known by now."""
    found = _SERVERS.get(connection)
    return found is not None and _was_replaced(found)


def check_server(connection: Connection) -> None:
    """Raise RetryError where `is_replaced`: what is found or committed there does not count."""
    if is_replaced(connection):
        raise RetryError("another host has become the primary: this one does not count")


class ClosedAtExit(ABC):
    """Is closed at the end of `async with`."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    @abstractmethod
    async def close(self) -> None:
        """Close what it holds, within its deadline.

        Raises:
            SettingError: in another event loop or thread than the one that opened it.
        """


class SyncWaitCancelled(ConnectionError):
    """The server gave up the wait for a synchronous standby, and answered with success.

    What was committed is on this server only, and may be lost with it. Handle it like an answer
    that was lost.
    """

    def __init__(self) -> None:
        super().__init__("the wait for a synchronous standby was cancelled")


def is_durable(synchronous_commit: str) -> bool:
    """Return whether a commit under this setting is on disk when it returns."""
    return synchronous_commit in _SAFE["synchronous_commit"]


def check_durability(settings: Mapping[str, str]) -> None:
    """Raise DurabilityError where a crash of the server may lose what was acknowledged.

    It checks those settings of a server that it knows and finds.
    """
    for setting, safe in _SAFE.items():
        found = settings.get(setting)
        if found is not None and found not in safe:
            raise DurabilityError(setting, found, "on (or --unsafe-durability)")


def is_sync_wait_cancelled(routine: str | None) -> bool:
    """Return whether a warning with this `routine` (field R) reports a wait that was given up."""
    return routine == _SYNC_WAIT_ROUTINE


def listen_for_cancelled_waits(
    connection: Connection, on_cancelled: Callable[[Connection], None]
) -> None:
    """Call `on_cancelled` for each wait of this connection for a standby that was given up.

    It is called before the driver returns the result that comes after the warning.
    """
    connection.add_log_listener(_listener(on_cancelled))


@contextmanager
def watch_for_cancelled_waits(connection: Connection) -> Iterator[Callable[[], bool]]:
    """Listen during the block; the yielded function returns whether a standby wait was given up.

    For a connection of the caller.
    """
    found: list[Connection] = []
    listener = _listener(found.append)
    connection.add_log_listener(listener)
    try:
        yield lambda: bool(found)
    finally:
        if not connection.is_closed():
            connection.remove_log_listener(listener)


def _listener(
    on_cancelled: Callable[[Connection], None],
) -> Callable[[Connection, LogMessage], None]:
    def heard(sender: Connection, message: LogMessage) -> None:
        if is_sync_wait_cancelled(getattr(message, "server_source_function", None)):
            on_cancelled(sender)

    return heard


_Result = TypeVar("_Result")

_BUSY_PAUSE_SECONDS: Final = (0.1, 3.0)
"""Pauses between two tries for one of the server's few connections: the first, and the longest.
They grow until one is had: a thousand sessions that wait must not keep the server from logging in
those whose turn it is."""


_LIFE_SECONDS: Final = 30.0
"""After so long a session with a primary that may move is opened again: its server may have been
replaced, and come back. Writes fail there; those that only read would never see it. One that
lingers is closed: where it never rests, others would never have a turn."""

MAKE_ROOM: Final[list[Callable[[DatabaseConfig], None]]] = []
"""Called with the database of a session that finds no connection left: each gives up what its users
can do without."""


_RENEW_SECONDS: Final = 2.0
"""The longest time that may hold up a caller: without names or free connections the old one goes
on."""

_RENEW_SHARE: Final = 0.25
"""The same as a share of a call's deadline: the call itself needs the rest."""


def _goes_on(old: Connection, error: BaseException) -> bool:
    """Return whether an old session goes on after `error` kept another from taking its place.

    Not where one was found that may not be used: the old one may be on the same server.
    """
    is_away = isinstance(error, (RetryError, ConnectError, *DRIVER_ERRORS))
    is_barred = isinstance(error, (PoolerFound, SeveralPrimaries)) or schema_refusal(error)
    return is_away and not is_barred and not old.is_closed() and not is_replaced(old)


ONE_CHAIN_SETTINGS: Final = {
    # With the chain as a constant a plan is made once, for the partitions of this chain. A long
    # chain has hundreds: planned at each call, they cost more than all rows that are read.
    "plan_cache_mode": "force_generic_plan",
    # Such a plan knows no limit, and statistics lag behind a growing table: PostgreSQL would read
    # and sort the whole range for each page. An index scan in order always stops at the page's end.
    "enable_bitmapscan": "off",
    "enable_seqscan": "off",
    # Discouraged scans look costly enough to be compiled.
    "jit": "off",
}
"""Settings of a session whose statements have the chain as a constant."""


class SessionConfig(Struct, frozen=True, kw_only=True):
    """The purpose of a session, its settings and its deadlines."""

    database: DatabaseConfig
    application_name: str
    """The name in `pg_stat_activity`, unless the config of the database has another."""
    role: str
    """The role whose members may do what the session is for: errors name it."""
    tables: tuple[str, ...] | None = None
    """The tables that it works on, all of whose rows it must see. None: the chain's."""
    numbered: Mapping[str, str] = NUMBERED
    """The tables that it writes to whose rows get a number from a sequence, and its column."""
    settings: dict[str, str] = {}
    """Settings of each session, such as `{"jit": "off"}`."""
    pooler: Literal["ignored", "refused", "read through"] = "ignored"
    """The answer to a pooler, which may serve each transaction by another session, without the
    settings and the prepared statements of this one. `fetch` can read through it: each statement
    runs in a transaction that begins with the settings, which takes two more round trips."""
    is_of_one_chain: bool = False
    """True if the first value of what `fetch` reads is the chain's number, the same each time: then
    it is written into the statement, and `ONE_CHAIN_SETTINGS` are set. The server plans, and locks,
    the partitions of that chain."""
    watches_standby: bool = False
    """True if a commit fails, with SyncWaitCancelled or what it leads to, where the server has
    given up its wait for a synchronous standby."""
    connect_seconds: float = 10.0
    statement_seconds: float = 10.0
    """Deadline of one statement, of a transaction as a whole, or of a block of work."""
    call_seconds: float | None = None
    """Deadline of the same, including a connect that it may need. None: the sum of the parts."""
    close_seconds: float = CLOSE_SECONDS
    is_standby_enough: bool = False
    """True if one host may lead to a standby, while no primary is there: for what only reads, and
    for commands, which say why a standby refused them."""
    linger_seconds: float | None = None
    """Time that the connection is kept after its last statement. None: until `close`."""
    busy_seconds: float = 0.0
    """Time to wait, with jitter, while the server has no connection left."""

    def __post_init__(self) -> None:
        """Mean the primary, where it writes; raises SettingError where a standby may be chosen."""
        is_any = self.is_standby_enough and "," not in self.database.host
        if self.role not in (GAP_READER, AUDITOR) and not is_any:
            force_setattr(self, "database", self.database.for_writing())

    @property
    def connect_within(self) -> float:
        """Deadline of a connect, which leaves a call time to use the connection."""
        if self.call_seconds is None:
            return self.connect_seconds
        return min(self.connect_seconds, self.call_seconds * _CONNECT_SHARE)

    @property
    def renew_within(self) -> float:
        """Deadline of a connect whose failure only lets an old session go on."""
        if self.call_seconds is None:
            return _RENEW_SECONDS
        return min(_RENEW_SECONDS, self.call_seconds * _RENEW_SHARE)

    @property
    def all_settings(self) -> dict[str, str]:
        """Settings that the session is sent."""
        return {**(ONE_CHAIN_SETTINGS if self.is_of_one_chain else {}), **self.settings}


class Session:
    """One connection, used by one caller at a time, in the order of their calls.

    It is opened at the first statement and after one that failed: what a cancelled or failed
    statement leaves on the wire is not worth knowing. A session that lingers also closes it by
    itself. `close` ends it; a later use opens it again.

    Raises:
        RetryError: it is not known whether the statement was executed.
        SettingError: in another event loop or thread than the one that opened it.
        ConnectError: the settings cannot lead to a connection.
        SchemaError: the schema is of another version, or hides rows from this login.
        OrderchainError: another of the errors that `refusal` and `statement_refusal` return.
    """

    def __init__(
        self,
        config: SessionConfig,
        *,
        prepare: Callable[[Connection], Awaitable[None]] | None = None,
        refusal: Callable[[Exception], Exception | None] | None = None,
        server: ServerIdentity | None = None,
        random: Random | None = None,
    ) -> None:
        """Connect later, as `config` says.

        Args:
            config: the purpose of the session.
            prepare: runs on each new connection, for checks and listeners; what it raises is
                treated like a statement's error.
            refusal: returns what to raise for an error of the driver; None where it knows nothing.
            server: the only one that it connects to; other hosts are passed over.
            random: for simulations.
        """
        self._config = config
        self._server = server
        self._prepare = prepare
        self._refusal = refusal
        self._busy = Backoff(*_BUSY_PAUSE_SECONDS, random=random)
        self.home = HomeLoop(config.application_name)
        self._turn = asyncio.Lock()
        self._failed: Exception | None = None  # what the last connect raised
        self._connects = 0
        self._connection: Connection | None = None
        self.last: Connection | None = None
        """That of the last call that succeeded; another caller's, once something was awaited."""
        self._opened_at = 0.0
        self._was_cancelled = False  # whether a wait for a standby was, on this connection
        self._release: asyncio.TimerHandle | None = None
        self._closing: set[asyncio.Task[None]] = set()
        # Detected at a connect, and kept: an address does not change what it leads to.
        self._is_pooled = False

    async def fetch(self, statement: str, *values: object) -> list[Any]:
        """Return the rows of one statement, which is committed when this returns."""
        if self._config.is_of_one_chain:
            statement, values = with_constant(statement, values[0]), values[1:]
        async with self._held() as connection:
            if self._is_pooled:
                # A pooler keeps a client at one server only within a transaction.
                own = {**PINNED, **self._config.all_settings}.items()  # ours, not a caller's
                pinned = (f"SET LOCAL {name} = '{value}'" for name, value in own)
                await connection.execute("; ".join(("BEGIN READ ONLY", *pinned)))
            rows: list[Any] = await connection.fetch(statement, *values)
            if self._is_pooled:
                await connection.execute("COMMIT")
            return rows

    async def execute(self, statement: str, *values: object) -> int:
        """Run one statement with values, and return how many rows it wrote."""
        async with self._held() as connection:
            status: str = await connection.execute(statement, *values)
            return int(status.rpartition(" ")[2])

    async def run(self, work: Callable[[Connection], Awaitable[_Result]]) -> _Result:
        """Return what `work` returns for the connection."""
        async with self._held() as connection:
            return await work(connection)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        """Hold the connection in a transaction that commits at the end of the block.

        Any error in the block ends the connection, and with it the transaction.
        """
        async with self._held() as connection:
            transaction = connection.transaction()
            await transaction.start()
            yield connection
            check_server(connection)
            await transaction.commit()

    async def close(self) -> None:
        """Close, within `close_seconds`. Raises SettingError in another event loop."""
        self.home.check()
        self.home.leave()
        self._keep()
        connection, self._connection = self._connection, None
        if connection is not None:
            await close_connection(connection, self._config.close_seconds)
        if self._closing:
            await asyncio.wait(self._closing, timeout=self._config.close_seconds)

    # -- holding -------------------------------------------------------------------------------

    @asynccontextmanager
    async def _held(self) -> AsyncIterator[Connection]:
        self.home.join()
        connects = self._connects
        async with self._turn:
            if self._failed is not None and self._connects != connects:
                # Somebody tried while this one waited: the next would take as long, for each.
                raise self._failed.with_traceback(None)
            self._keep()
            try:
                async with asyncio.timeout(self._config.call_seconds):
                    if self._connection is not None and is_replaced(self._connection):
                        self.let_go()
                    elif self._connection is not None and self._is_old():
                        await self._renew(self._connection)
                    connection = self._connection
                    if connection is None or connection.is_closed():
                        connection = await self._open()
                    self._was_cancelled = False
                    async with asyncio.timeout(self._config.statement_seconds):
                        yield connection
                    if self._was_cancelled:
                        raise SyncWaitCancelled
                    self.last = connection
            except BaseException as error:
                self._abandon()
                if isinstance(error, Exception):
                    self._raise_refusal(error)
                raise
            if self._config.linger_seconds is not None:
                loop = asyncio.get_running_loop()
                left = self._opened_at + _LIFE_SECONDS - loop.time()
                if left > 0:
                    seconds = min(self._config.linger_seconds, left)
                    self._release = loop.call_later(seconds, self.let_go)
                else:
                    self.let_go()

    def _is_old(self) -> bool:
        """Return whether another host may have become the primary since it was opened."""
        if self._connection is None or self._connection.is_closed() or self._server is not None:
            return False
        age = asyncio.get_running_loop().time() - self._opened_at
        return age > _LIFE_SECONDS and self._config.database.may_move

    async def _renew(self, old: Connection) -> None:
        """Open another one in its place; where none is to be had soon, the old one goes on.

        Raises why no other may be used; then the old one is ended, too.
        """
        try:
            async with asyncio.timeout(self._config.renew_within):
                await self._open()
        except BaseException as error:
            if not _goes_on(old, error):
                old.terminate()
                raise
            if self._connection is not old:
                self._abandon()
            self._connection, self._failed = old, None
            self._opened_at = asyncio.get_running_loop().time()
            return
        self._close_beside(old)

    def _raise_refusal(self, error: Exception) -> None:
        """Raise what callers get for `error`, unless that is `error` itself."""
        config = self._config
        refusal = (self._refusal and self._refusal(error)) or statement_refusal(
            error, config.database, config.role, numbered=config.numbered
        )
        try:
            if refusal is not error:
                raise refusal from error
        finally:
            del refusal  # its traceback refers to this frame

    async def _open(self) -> Connection:
        connection = self._connection = await self._connect()
        self._opened_at = asyncio.get_running_loop().time()
        if self._config.watches_standby:
            listen_for_cancelled_waits(connection, self._on_cancelled_wait)
        if self._prepare is not None:
            async with asyncio.timeout(self._config.statement_seconds):
                await self._prepare(connection)
        return connection

    async def _connect(self) -> Connection:
        """Log in, waiting with jitter while the server has no connection left."""
        loop = asyncio.get_running_loop()
        end = loop.time() + self._config.busy_seconds
        self._failed = None
        try:
            while True:
                try:
                    connection = await open_connection(
                        self._config, is_pooled=self._is_pooled, server=self._server
                    )
                except PoolerFound:
                    if self._is_pooled or self._config.pooler != "read through":
                        raise
                    self._is_pooled = True
                    continue
                except RetryError as error:
                    # Never reset by a failure: it is the server that is short, not this try.
                    pause = self._busy.next_seconds()
                    if not is_too_many_connections(error) or loop.time() + pause > end:
                        raise
                    if self._busy.tries > 1:  # before, it may be one that was closed just now
                        for make_room in MAKE_ROOM:
                            make_room(self._config.database)
                    await asyncio.sleep(pause)
                    continue
                self._busy.reset()
                return connection
        except (RetryError, ConnectError) as error:
            self._failed = error
            raise
        finally:
            self._connects += 1

    def _on_cancelled_wait(self, _: Connection) -> None:
        self._was_cancelled = True

    # -- releasing -----------------------------------------------------------------------------

    def _keep(self) -> None:
        if self._release is not None:
            self._release.cancel()
            self._release = None

    def let_go(self) -> None:
        """Close the connection beside; the next call opens another one."""
        connection, self._connection = self._connection, None
        self._close_beside(connection)

    def _close_beside(self, connection: Connection | None) -> None:
        if connection is not None:
            task = asyncio.ensure_future(close_connection(connection, self._config.close_seconds))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    def _abandon(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.terminate()


@asynccontextmanager
async def connected(
    config: SessionConfig, *, server: ServerIdentity | None = None
) -> AsyncIterator[Connection]:
    """Hold one connection for work that is done once, each statement with its deadline.

    `server` accepts that one alone. Errors of the block that are none of the server are raised as
    they are.

    Raises:
        ConnectError: no server can be used, or it may not be written to.
        RetryError: the database is away; what was sent may have been done.
        OrderchainError: another of the errors that `statement_refusal` returns.
    """
    seconds = config.statement_seconds
    connection = await open_connection(config, statement_seconds=seconds, server=server)
    try:
        yield connection
    except SERVER_ERRORS as error:
        database, role = config.database, config.role
        barred = read_only_refusal(error, database, role)
        raise barred or statement_refusal(
            error, database, role, numbered=config.numbered
        ) from error
    finally:
        # Nothing is under way any more; a server that is gone must not delay us.
        connection.terminate()


async def open_connection(
    config: SessionConfig,
    *,
    is_pooled: bool = False,
    statement_seconds: float | None = None,
    server: ServerIdentity | None = None,
) -> Connection:
    """Return a new connection, for a session of another kind.

    Raises:
        ConnectError: no server can be used.
        RetryError: none can be used now.
        PoolerFound: a pooler answers where a direct connection is needed.
        SchemaError: it would not see each row of its tables.
    """
    # A leader's sessions know the server of its term instead.
    stays = config.database.may_move and (config.watches_standby or config.role == GAP_READER)
    connection = await connect(
        config.database,
        application_name=config.application_name,
        within_seconds=config.connect_within,
        settings={} if is_pooled else config.all_settings,
        statement_seconds=statement_seconds,
        is_direct=config.pooler != "ignored" and not is_pooled,
        is_pooled=is_pooled,
        server=server,
        was_replaced=_was_replaced if stays else None,
    )
    tables = chain_tables() if config.tables is None else config.tables
    # A pooler keeps a client at one server only within a transaction.
    together = connection.transaction(readonly=True) if is_pooled else nullcontext()
    try:
        async with asyncio.timeout(config.connect_within), together:
            await require_sight(connection, tables)
            if stays:
                found = await server_identity(connection)
                require_newest(found)
                _SERVERS[connection] = found
    except BaseException as error:
        connection.terminate()
        if isinstance(error, SERVER_ERRORS):
            raise RetryError(f"the session could not begin: {reason_of(error)}") from error
        raise
    return connection


class Connections:
    """Connections for many callers at once, each for one message or batch.

    Those that are given back are reused; broken ones are dropped. This is not asyncpg's own pool:
    that one resets a connection at each return, which is a round trip per message. There is no
    bound here: the callers are bounded.
    """

    def __init__(
        self,
        config: SessionConfig,
        *,
        prepare: Callable[[Connection], Awaitable[None]] | None = None,
    ) -> None:
        """`prepare` runs on each new connection, within the deadline of a statement."""
        self._config = config
        self._prepare = prepare
        self._free: list[Connection] = []
        self._opened_at: WeakKeyDictionary[Any, float] = WeakKeyDictionary()
        self._cancelled: set[Connection] = set()
        """Those whose last wait for a synchronous standby was given up."""

    async def take(self) -> Connection:
        """Return a connection. Raises what `connect` and `prepare` raise."""
        now = asyncio.get_running_loop().time()
        while self._free:
            connection = self._free.pop()
            if connection.is_closed() or is_replaced(connection):
                connection.terminate()
            elif self._is_old(connection, now):
                return await self._renewed(connection, now)
            else:
                return connection
        return await self._open(now)

    async def _renewed(self, old: Connection, now: float) -> Connection:
        """Return another one in the place of `old`; that one where none is to be had soon.

        Raises why no other may be used; then `old` is ended, too.
        """
        try:
            async with asyncio.timeout(self._config.renew_within):
                new = await self._open(now)
        except BaseException as error:
            if not _goes_on(old, error):
                old.terminate()
                raise
            self._opened_at[old] = now
            return old
        old.terminate()
        return new

    async def _open(self, now: float) -> Connection:
        connection = await open_connection(self._config)
        self._opened_at[connection] = now
        try:
            if self._config.watches_standby:
                listen_for_cancelled_waits(connection, self._cancelled.add)
            if self._prepare is not None:
                async with asyncio.timeout(self._config.statement_seconds):
                    await self._prepare(connection)
        except BaseException:
            self.drop(connection)
            raise
        return connection

    def _is_old(self, connection: Connection, now: float) -> bool:
        """Return whether another host may have become the primary since it was opened."""
        age = now - self._opened_at.get(connection, now)
        return age > _LIFE_SECONDS and self._config.database.may_move

    def give_back(self, connection: Connection) -> None:
        """Keep a connection for the next caller. One with an open transaction is ended."""
        is_over = connection.is_closed() or connection in self._cancelled
        if is_over or connection.is_in_transaction():
            self.drop(connection)
        else:
            self._free.append(connection)

    def drop(self, connection: Connection) -> None:
        """End a connection at once. What a failed statement leaves on the wire is not read."""
        self._cancelled.discard(connection)
        connection.terminate()

    async def commit(self, connection: Connection, transaction: Any) -> None:  # noqa: ANN401
        """Commit a transaction of asyncpg, which is untyped, within the deadline of a statement.

        Raises:
            RetryError: another host has become the primary; nothing was committed.
            SyncWaitCancelled: the commit may not outlive a failover.
            Exception: what the driver raises.
        """
        check_server(connection)
        async with asyncio.timeout(self._config.statement_seconds):
            await transaction.commit()
        self.check_commit(connection)

    def check_commit(self, connection: Connection) -> None:
        """Raise SyncWaitCancelled when the commit just made may not outlive a failover."""
        if connection in self._cancelled:
            self._cancelled.discard(connection)
            raise SyncWaitCancelled

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        """Hold a connection in a transaction that commits at the end of the block.

        Its beginning and its end have the deadline of a statement; the block has deadlines of its
        own. Errors of the driver are raised as they are: what they mean depends on the block.
        """
        connection = await self.take()
        transaction = connection.transaction(isolation="read_committed")
        try:
            async with asyncio.timeout(self._config.statement_seconds):
                await transaction.start()
            yield connection
            await self.commit(connection, transaction)
        except BaseException:
            self.drop(connection)
            raise
        self.give_back(connection)

    async def close(self) -> None:
        """Close those that are not in use; never raises."""
        free, self._free = self._free, []
        for connection in free:
            await close_connection(connection, self._config.close_seconds)
