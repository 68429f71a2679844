"""Connections to PostgreSQL: opening one, and one line that says why there is none.

No other module opens a connection of asyncpg.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from contextlib import suppress
from itertools import groupby
from math import inf
from operator import itemgetter
from traceback import clear_frames
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from urllib.parse import urlencode
from weakref import WeakKeyDictionary

import asyncpg
from asyncpg.pgproto import pgproto
from msgspec.structs import replace

from chain_kernel.clients import abort
from chain_kernel.clients.database_config import (
    PINNED,
    is_address,
    server_name,
    warn_of_exposure,
)
from chain_kernel.clients.postgres_errors import (
    DRIVER_ERRORS,
    PoolerFound,
    SeveralPrimaries,
    connect_refusal,
    is_too_many_connections,
    may_another_do,
    pooler_found,
    refusal_of_all,
    rolled_back,
)
from chain_kernel.errors import (
    ConnectError,
    OrderchainError,
    RetryError,
    SchemaError,
    SettingError,
)
from chain_kernel.model import ServerIdentity
from chain_kernel.sql import load_sql
from chain_kernel.text import reason_of

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence, Set

    from chain_kernel.clients.database_config import DatabaseConfig

    Record: TypeAlias = asyncpg.Record
    Connection: TypeAlias = asyncpg.Connection[Record]
    # Host, port and address; where its name was not resolved, why.
    Place: TypeAlias = tuple[str, int, str | OSError]
    LogMessage: TypeAlias = asyncpg.PostgresLogMessage

DriverUUID: Final = pgproto.UUID
"""The driver's own UUID, a subclass of the standard library's that takes 0.3 us to make, not 1.6
(asyncpg 0.32): a message makes three, of the 64 us of CPU time that two cores have for it."""

CLOSE_SECONDS: Final = 1.0
"""A connection that does not close by then is dropped: the server cleans up after it."""

_TYPES_OF_OURS: Final = frozenset(
    {"bool", "bytea", "float8", "int2", "int4", "int8", "interval", "text", "timestamptz", "uuid"}
)
_HANG_UPS: Final = (ConnectionResetError, BrokenPipeError, asyncpg.ConnectionDoesNotExistError)

_SQL: Final = load_sql("chain_kernel.clients", "server.sql")

_OTHERS_SECONDS: Final = 1.0
"""Once one of several hosts has answered, the others are waited for so long: a primary that was
promoted answers as fast as one that came back, and one that is silent must not delay us."""

_DARK_SECONDS: Final = 0.25
"""As long for those that were silent lately: a dead host must not cost each connect a second."""

_DARK_FOR_SECONDS: Final = 30.0

_LATE_SECONDS: Final = 0.1
"""By how much our own loop may be late: else it, and not a host, had no time."""

_DARK_UNTIL: Final[dict[Place, float]] = {}
"""By the first place of a host: until when it counts as silent, by the loop's monotonic clock."""

_LOOKUPS: Final[WeakKeyDictionary[Any, dict[tuple[str, int], asyncio.Future[list[Any]]]]] = (
    WeakKeyDictionary()
)
"""By event loop, host and port: the look-up of the name that is under way."""

_ALERT_SECONDS: Final = 3.0
"""The longest look for the reason of a hang-up: two round trips."""
_TLS_REQUEST: Final = struct.pack("!ii", 8, 80_877_103)
"""The message that requests TLS from a PostgreSQL server; it answers with one letter."""

_ELEMENTS: Final = {
    "bool": (16, 1000),
    "bytea": (17, 1001),
    "int8": (20, 1016),
    "int2": (21, 1005),
    "int4": (23, 1007),
    "text": (25, 1009),
    "float8": (701, 1022),
    "timestamptz": (1184, 1185),
    "interval": (1186, 1187),
    "uuid": (2950, 2951),
}
"""The numbers of the types whose arrays our statements send or return, and of these arrays: the
same in every PostgreSQL."""

_ARRAY_TYPES: Final = tuple(
    {
        "oid": array,
        "ns": "pg_catalog",
        "name": f"_{name}",
        "kind": b"b",
        "basetype": None,
        "basetype_name": None,
        "elemtype": element,
        "elemtype_name": name,
        "elemdelim": ",",
        "range_subtype": None,
        "range_subtype_name": None,
        "attrtypoids": None,
        "attrnames": None,
    }
    for name, (element, array) in _ELEMENTS.items()
)
"""Types that asyncpg would ask the server for once per connection, at the first statement with such
an array: two statements, of several milliseconds each, in the first fill of a gap."""


class _Connection(asyncpg.Connection):  # type: ignore[misc]  # asyncpg is untyped
    """A connection whose commit fails where the server has rolled back instead.

    The server does that with a transaction that an error has broken, and asyncpg ignores the word
    that reports it. The block of the transaction may have hidden that error.
    """

    def __init__(self, protocol: object, transport: object, loop: _Opening, *rest: object) -> None:
        super().__init__(protocol, transport, loop.usual, *rest)

    async def execute(
        self,
        query: str,
        *args: Any,  # noqa: ANN401 - as asyncpg has it
        timeout: float | None = None,
    ) -> str:
        status: str = await super().execute(query, *args, timeout=timeout)
        if status == "ROLLBACK" and query.startswith("COMMIT"):
            raise rolled_back()
        return status

    async def set_type_codec(self, typename: str, **given: Any) -> None:  # noqa: ANN401
        """See asyncpg. Handlers get such a connection, too: our statements on it need their types.

        Raises SettingError for a type that they use.
        """
        if typename in _TYPES_OF_OURS:
            expected = "the driver's own, on a connection that is not yours: cast in the statement"
            raise SettingError("codec", typename, expected)
        await super().set_type_codec(typename, **given)


async def fetch_of_owner(
    connection: Connection,
    statement: str,
    *values: object,
    timeout: float | None = None,
) -> list[Record]:
    """Return the rows of a statement on a caller's connection, whatever its owner has set up.

    Its records are the driver's own, whatever class the owner has chosen. The rest is the
    statement's: an owner may have changed how each type travels (`set_type_codec`) and where names
    are looked up. So ids, bytes, times and JSON travel as text, cast within the statement, and
    names have their schema. Raises what the driver raises.
    """
    rows: list[Record] = await connection.fetch(
        statement, *values, timeout=timeout, record_class=asyncpg.Record
    )
    return rows


_STATEMENTS_KEPT: Final = 1_000


async def connect(
    config: DatabaseConfig,
    *,
    application_name: str,
    within_seconds: float,
    settings: Mapping[str, str] | None = None,
    statement_seconds: float | None = None,
    is_direct: bool = False,
    is_pooled: bool = False,
    server: ServerIdentity | None = None,
    was_replaced: Callable[[ServerIdentity], bool] | None = None,
) -> Connection:
    """Return a new connection to the first acceptable server of those that `config` names.

    Each of them, and each address of a name, gets its share of the time, so that an unresponsive
    one does not keep us from the next. Where `config` wants the newest of several hosts, or of a
    name with several addresses, each is asked, and the one on the highest timeline is taken: of two
    that say that they are the primary, the other one was replaced. The first connection to a host
    where another machine may pose as the server logs a warning.

    Args:
        config: the hosts, and how to log in.
        application_name: the name in `pg_stat_activity`, unless `config` has another.
        within_seconds: the time for all servers together.
        settings: settings of the session: they take precedence over those of `config`, which do
            over what is `PINNED`.
        statement_seconds: the deadline of each statement that has none of its own.
        is_direct: refuse a pooler.
        is_pooled: make no prepared statements, which a pooler would mix up.
        server: accept this one alone.
        was_replaced: returns whether a server was replaced by a primary that may not be among the
            hosts: such a one is taken only where no other answers.

    Raises:
        ConnectError: no server can be used; one line says what each lacks.
        RetryError: that may pass: a server starts, stops or is full, or none has the wanted role.
        SeveralPrimaries: two servers are on the highest timeline.
        PoolerFound: a pooler answers where a direct connection is needed.
    """
    try:
        warn_of_exposure(config)
        options = _options(config, application_name, settings or {}, is_pooled=is_pooled)
        options["command_timeout"] = statement_seconds
        # Statements with the chain as a constant are others for each chain of a process.
        options["statement_cache_size"] = 0 if is_pooled else _STATEMENTS_KEPT
        end = asyncio.get_running_loop().time() + within_seconds
        places = await _places(config, within_seconds)
        hosts = _hosts(places, config)
        if server is None and config.wants_newest and len(hosts) > 1 and not is_pooled:
            opening = {each[0]: _first(config, options, each, end, is_direct) for each in hosts}
            return await _newest(config, opening, end, was_replaced)
        return await _first(config, options, places, end, is_direct, server)
    except SettingError as error:
        # The config has read its files before: one that is being replaced is there again soon.
        raise ConnectError(error.field, error.value, error.expected) from error
    except OrderchainError as error:
        # Frames that refer to it: as those of the driver, below.
        clear_frames(error.__traceback__)
        raise


async def primaries(
    config: DatabaseConfig, *, application_name: str, within_seconds: float
) -> dict[str, ServerIdentity | None]:
    """Return for each host which primary it says that it is; None for a standby, or no answer.

    Two ways to one primary are one.

    Raises:
        SettingError: a file of `config` cannot be read.
    """
    wanted = replace(config, target_session_attrs="primary")
    options = _options(wanted, application_name, {}, is_pooled=False)
    end = asyncio.get_running_loop().time() + within_seconds
    options["command_timeout"] = within_seconds
    hosts = _hosts(await _places(wanted, within_seconds), wanted)
    opening = (_with_server(_first(wanted, options, each, end, is_direct=False)) for each in hosts)
    answers = await asyncio.gather(*opening, return_exceptions=True)
    found: dict[str, ServerIdentity | None] = {}
    starts = set()
    for ((host, port, address), *_), answer in zip(hosts, answers, strict=True):
        identity = None
        if isinstance(answer, tuple):
            connection, server = answer
            connection.terminate()
            if server["started_at"] in starts:
                continue
            starts.add(server["started_at"])
            identity = ServerIdentity(server["system_identifier"], server["timeline"])
        at = f" at {address}" if isinstance(address, str) and address != host else ""
        found[server_name(host, port) + at] = identity
    return found


async def _first(
    config: DatabaseConfig,
    options: Mapping[str, Any],
    places: Sequence[Place],
    end: float,
    is_direct: bool,
    wanted: ServerIdentity | None = None,
) -> Connection:
    """Return a connection to the first acceptable server at `places`, each with a share of the time
    until `end`; `wanted` is the only one that is accepted."""
    loop = asyncio.get_running_loop()
    wanted_role = config.target_session_attrs or "any"
    # Any server is accepted only when no standby is.
    roles = ("standby", "any") if wanted_role == "prefer-standby" else (wanted_role,)
    attempts = [(role, *place) for role in roles for place in places]
    refusals: list[tuple[OrderchainError, Exception]] = []
    for index, (role, host, port, address) in enumerate(attempts):
        share_end = loop.time() + (end - loop.time()) / (len(attempts) - index)
        own_end = loop.time() + (float(config.connect_timeout or 0) or inf)
        try:
            async with asyncio.timeout_at(min(share_end, own_end)):
                connection = await _connect_one(config, options, (host, port), address, role)
                if is_direct:
                    await _require_direct(connection, config)
                if wanted is not None:
                    await _require_server(connection, wanted, server_name(host, port))
                return connection
        except (RetryError, PoolerFound) as error:
            if wanted is None and isinstance(error, PoolerFound):
                raise
            refusals.append((error, error))
        except DRIVER_ERRORS as error:
            # The driver keeps its error, and a TLS context, in the frame that raises it: a cycle. A
            # standby of a database that is away makes many, and the collector runs rarely.
            clear_frames(error.__traceback__)
            is_hang_up = isinstance(error, _HANG_UPS) and config.is_tls_certain
            if is_hang_up and isinstance(address, str):
                error = await _alert(config, (host, port), address, share_end) or error
            refusal = connect_refusal(error, config, host, port)
            # What another server refuses says nothing of the one that is wanted.
            if wanted is None and not may_another_do(error):
                raise refusal from error
            refusals.append((refusal, error))
    causes = [error for _, error in refusals]
    cause = next((error for error in causes if is_too_many_connections(error)), causes[-1])
    raise refusal_of_all([refusal for refusal, _ in refusals], config) from cause


async def _newest(
    config: DatabaseConfig,
    opening: Mapping[Place, Coroutine[Any, Any, Connection]],
    end: float,
    was_replaced: Callable[[ServerIdentity], bool] | None = None,
) -> Connection:
    """Return the connection to the server on the highest timeline; the others are ended.

    `opening` is by the first place of each host.
    """
    tasks = {host: asyncio.ensure_future(_with_server(each)) for host, each in opening.items()}
    newest: tuple[Connection, Record] | None = None
    try:
        answered = await _answers(tasks, end)
        good = [
            each for each in answered if not (was_replaced and was_replaced(_identity(each[1])))
        ]
        newest = max(good or answered, key=lambda each: each[1]["timeline"] or 0, default=None)
        if newest is not None:
            _require_one(newest, answered, config)
        _end(tasks.values(), but=newest)
        ended = await asyncio.gather(*tasks.values(), return_exceptions=True)
    except BaseException:
        _end(tasks.values())
        raise
    if newest is not None:
        return newest[0]
    refusals = [each for each in ended if isinstance(each, OrderchainError)]
    for refusal in refusals:
        if isinstance(refusal, PoolerFound) or not isinstance(refusal, RetryError | ConnectError):
            raise refusal
    if not refusals:
        raise RetryError("no server answered in time")
    cause = next((each for each in refusals if is_too_many_connections(each)), refusals[-1])
    raise refusal_of_all(refusals, config) from cause.__cause__


def _end(
    tasks: Iterable[asyncio.Future[tuple[Connection, Record]]],
    but: tuple[Connection, Record] | None = None,
) -> None:
    """End `tasks`, and each connection that they have opened, or still open, `but` one."""

    def ended(task: asyncio.Future[tuple[Connection, Record]]) -> None:
        if not task.cancelled() and task.exception() is None and task.result() is not but:
            task.result()[0].terminate()

    for task in tasks:
        task.cancel()
        task.add_done_callback(ended)


async def _answers(
    tasks: Mapping[Place, asyncio.Future[tuple[Connection, Record]]], end: float
) -> list[tuple[Connection, Record]]:
    """Return what each of `tasks`, by host, has found by `end`, or soon after another.

    A refusal that is final is waited for no longer than an answer is.
    """
    loop = asyncio.get_running_loop()
    lit = {task for host, task in tasks.items() if _DARK_UNTIL.get(host, -inf) <= loop.time()}
    waiting, last_end = set(tasks.values()), end
    first_at, was_late = inf, False
    try:
        while waiting and (seconds := end - loop.time()) > 0:
            done, waiting = await asyncio.wait(
                waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED
            )
            if any(map(_is_final, done)):
                first_at = min(first_at, loop.time())
            if first_at < inf:
                soon = loop.time() + (_OTHERS_SECONDS if waiting & lit else _DARK_SECONDS)
                # A loop that was late has left no time for an answer. One that always is gets no
                # more.
                is_late = loop.time() - end >= _LATE_SECONDS
                end = min(last_end if is_late and not was_late else end, soon)
                was_late = was_late or is_late
    finally:
        # Who gives up earlier than we do must not wait for the same host each time.
        was_heard = loop.time() - first_at < _DARK_SECONDS
        is_fair = not was_heard and (was_late or loop.time() - end < _LATE_SECONDS)
        _keep_dark(tasks, lit if is_fair else set())
    return [
        task.result() for task in tasks.values() if task not in waiting and task.exception() is None
    ]


def _is_final(task: asyncio.Future[Any]) -> bool:
    """Return whether a host has answered, or refused what no other one would be asked after it."""
    error = task.exception()
    cause = error and error.__cause__
    is_refused = isinstance(cause, Exception) and not may_another_do(cause)
    return error is None or isinstance(error, PoolerFound) or is_refused


def _keep_dark(tasks: Mapping[Place, asyncio.Future[Any]], silent: Set[Any]) -> None:
    """Remember which hosts are silent: those whose tasks are in `silent`, and still run.

    Loops of several threads share what is remembered.
    """
    now = asyncio.get_running_loop().time()
    for host, until in list(_DARK_UNTIL.items()):
        if until <= now:
            _DARK_UNTIL.pop(host, None)
    for host, task in tasks.items():
        if task.done():
            _DARK_UNTIL.pop(host, None)
        elif task in silent:
            _DARK_UNTIL[host] = now + _DARK_FOR_SECONDS


def _require_one(
    newest: tuple[Connection, Record],
    answered: Sequence[tuple[Connection, Record]],
    config: DatabaseConfig,
) -> None:
    """Raise SeveralPrimaries where another server writes the same timeline, or is another cluster.

    Neither replaces the other: both were promoted, or one is a copy of the other's files, and what
    one has the other may lack. Timelines of two clusters, as before an upgrade, say nothing.
    """
    clusters = {each["system_identifier"] for _, each in answered if each["timeline"]}
    if len(clusters) > 1:
        raise SeveralPrimaries(
            f"servers of {config.shown} are primaries of different clusters, by their system "
            f"identifiers {' and '.join(map(str, sorted(clusters)))}: end all but the right one"
        )
    twins = {newest[1]["started_at"], *(
        server["started_at"] for _, server in answered
        if server["timeline"] and server["timeline"] == newest[1]["timeline"]
        and server["system_identifier"] == newest[1]["system_identifier"]
    )}  # fmt: skip
    if len(twins) > 1:
        raise SeveralPrimaries(
            f"{len(twins)} servers of {config.shown} are primaries on the same timeline, "
            f"{newest[1]['timeline']}: end all but the one that is right"
        )


async def _with_server(opening: Coroutine[Any, Any, Connection]) -> tuple[Connection, Record]:
    connection = await opening
    try:
        return connection, await connection.fetchrow(_SQL["server_identity"])
    except BaseException as error:
        connection.terminate()
        if isinstance(error, DRIVER_ERRORS):
            raise RetryError(f"which server it is: {reason_of(error)}") from error
        raise


async def server_identity(connection: Connection) -> ServerIdentity:
    """Return which server `connection` leads to; timeline 0 for a standby, which writes no log.

    Raises what the driver raises.
    """
    return _identity(await connection.fetchrow(_SQL["server_identity"]))


def _identity(found: Record) -> ServerIdentity:
    return ServerIdentity(found["system_identifier"], found["timeline"] or 0)


async def require_sight(connection: Connection, tables: Sequence[str]) -> None:
    """Raise SchemaError where row security hides rows of `tables` from this login.

    What is hidden is not empty: a part would run idle, or take a whole chain for a broken one.
    Raises what the driver raises, too.
    """
    if hidden := await connection.fetch(_SQL["hidden"], list(tables)):
        names = ", ".join(row[0] for row in hidden)
        expected = (
            "all of them visible to this login and their owner (docs/permissions.md#row-security)"
        )
        raise SchemaError("row security", f"hiding rows of {names}", expected)


async def _require_server(connection: Connection, wanted: ServerIdentity, name: str) -> None:
    """Raise RetryError, and end the connection, where it does not lead to `wanted`."""
    try:
        if (found := await server_identity(connection)) == wanted:
            return
    except BaseException:
        connection.terminate()
        raise
    connection.terminate()
    found_now = "a standby" if not found.timeline else str(found)
    raise RetryError(f"database {name}: not the server of the term ({wanted}), but {found_now}")


async def close_connection(connection: Connection, within_seconds: float = CLOSE_SECONDS) -> None:
    """Close `connection` within the time, or drop it; never raises for what the server does."""
    with suppress(*DRIVER_ERRORS):
        await connection.close(timeout=within_seconds)


# -- opening -----------------------------------------------------------------------------------


def _hosts(places: Sequence[Place], config: DatabaseConfig) -> list[list[Place]]:
    """Return the places of each host.

    An address of each family leads to one host; two of one family lead to two, such as all servers
    of a cluster behind one name. The places where a server is looked for that has no name are one.
    """
    if not config.host:
        return [list(places)]
    hosts: list[list[Place]] = []
    for _, each in groupby(places, key=itemgetter(0, 1)):
        of_name = list(each)
        of_ipv6 = sum(":" in str(address) for _, _, address in of_name)
        is_one = max(of_ipv6, len(of_name) - of_ipv6) == 1
        hosts += [of_name] if is_one else [[place] for place in of_name]
    return hosts


async def _places(config: DatabaseConfig, within_seconds: float) -> list[Place]:
    """Return host, port and address of each server: as libpq, we try every address of a name.

    A name that is not resolved within its share leads nowhere: were it looked up again where it is
    tried, its first address would be taken alone, and the newest of several not be looked for.
    """
    places: list[Place] = []
    for host, port in config.addresses:
        if host.startswith("/") or is_address(host):
            places.append((host, port, host))
            continue
        try:
            async with asyncio.timeout(within_seconds / 2 / len(config.addresses)):
                found = await _resolve(host, port)
        except TimeoutError:
            places.append((host, port, socket.gaierror(socket.EAI_AGAIN, "no answer in time")))
        except OSError as error:
            places.append((host, port, error))
        else:
            addresses = dict.fromkeys(each[4][0] for each in found)
            places += [(host, port, address) for address in addresses]
    return places


async def _resolve(host: str, port: int) -> list[Any]:
    """Return what a name leads to; those who ask while an answer is awaited share it.

    A look-up that is given up holds one of the few threads of the process until it ends.
    """
    loop = asyncio.get_running_loop()
    under_way, name = _LOOKUPS.setdefault(loop, {}), (host, port)
    if (lookup := under_way.get(name)) is None:
        asked = loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        lookup = under_way[name] = asyncio.ensure_future(asked)

        def ended(lookup: asyncio.Future[list[Any]]) -> None:
            del under_way[name]
            if not lookup.cancelled():
                lookup.exception()  # retrieved: maybe none waits any more

        lookup.add_done_callback(ended)
    return await asyncio.shield(lookup)


async def _connect_one(
    config: DatabaseConfig,
    options: Mapping[str, Any],
    server: tuple[str, int],
    address: str | OSError,
    target: str,
) -> Connection:
    """Connect to one server. All that asyncpg would take from the environment is passed."""
    if isinstance(address, OSError):
        raise address
    password = config.read_password(*server)
    opening = _Opening(address)
    try:
        connection = await asyncpg.connect(
            host=server[0],
            port=server[1],
            password=lambda: password,  # an empty text would make asyncpg look elsewhere
            target_session_attrs=target,
            timeout=None,
            loop=opening,
            connection_class=_Connection,
            **options,
        )
    except BaseException:
        opening.abort()
        raise
    # asyncpg would ask each new connection for these types at its first array: 25.5 ms, not 1.1
    # (medians of 60, asyncpg 0.32, PostgreSQL 15). It has no public name for it.
    connection._protocol.get_settings().register_data_types(_ARRAY_TYPES)
    return connection


class _Opening:
    """The event loop as asyncpg uses it for one address of a server's name.

    It remembers the transports that asyncpg opens. asyncpg closes those that it gives up, and a
    connection of TLS is then open until the server has said goodbye. uvloop hangs when it is closed
    before that, as the loop of a command is.
    """

    def __init__(self, address: str) -> None:
        self.usual = asyncio.get_running_loop()
        self._address = address
        # The protocol keeps this object, and asks it at each statement.
        self.time, self.call_later = self.usual.time, self.usual.call_later
        self._opened: list[asyncio.BaseTransport] = []

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever a loop has
        return getattr(self.usual, name)

    async def create_connection(self, made: Any, host: str, port: int, **options: Any) -> Any:  # noqa: ANN401
        """Open a connection to the address; its certificate must be that of `host`."""
        if options.get("ssl"):
            options["server_hostname"] = host
        opened = await self.usual.create_connection(made, self._address, port, **options)
        self._opened.append(opened[0])
        return opened

    async def start_tls(self, *given: Any, **options: Any) -> asyncio.BaseTransport | None:  # noqa: ANN401
        """Put TLS over a connection."""
        transport = await self.usual.start_tls(*given, **options)
        if transport is not None:
            self._opened.append(transport)
        return transport

    def abort(self) -> None:
        """End what was opened."""
        for transport in self._opened:
            abort(transport)


async def _require_direct(connection: Connection, config: DatabaseConfig) -> None:
    """Raise PoolerFound, and end the connection, where its backend is not the announced one.

    A pooler gives its clients backend numbers of its own. The query uses no prepared statement,
    which a pooler would mix up with those of others, and so the value is in its text.
    """
    question = f"SELECT WHERE pg_backend_pid() = {connection.get_server_pid():d}"
    try:
        if await connection.execute(question) == "SELECT 1":
            return
    except BaseException:
        connection.terminate()
        raise
    connection.terminate()
    raise pooler_found(config, "which hides the process that serves it")


async def _alert(
    config: DatabaseConfig, server: tuple[str, int], address: str, until: float
) -> ssl.SSLError | None:
    """Return the alert with which a server ends TLS, such as for a client's certificate, else None.

    It arrives when the client already treats the connection as open, and asyncpg loses it. The look
    ends at `until` at the latest.
    """
    host, port = server
    if host.startswith("/") or config.sslnegotiation == "direct":
        return None
    try:
        soon = asyncio.get_running_loop().time() + _ALERT_SECONDS
        async with asyncio.timeout_at(min(soon, until)):
            reader, writer = await asyncio.open_connection(address, port)
            try:
                writer.write(_TLS_REQUEST)
                if await reader.readexactly(1) == b"S":
                    await writer.start_tls(config.tls_context(), server_hostname=host)
                    await reader.read(1)  # the server waits, too, unless it ends the connection
            finally:
                writer.close()  # first: after an abort alone, a writer of TLS still seems open
                abort(writer.transport)
    except ssl.SSLError as error:
        return error
    except (OSError, EOFError):
        return None
    return None


def _options(
    config: DatabaseConfig, application_name: str, settings: Mapping[str, str], *, is_pooled: bool
) -> dict[str, Any]:
    given = {"application_name": config.application_name, "options": config.options}
    # A server takes `--search-path=app`, too.
    own = (config.options or "").replace("-", "_")
    pinned = {name: value for name, value in PINNED.items() if name not in own}
    return {
        "user": config.login,
        "database": config.database,
        # A mode where a session may go on without TLS: with a context asyncpg requires TLS.
        "ssl": config.tls_context() if config.is_tls_certain else config.tls_mode,
        "dsn": _own_certificate(config),
        "direct_tls": config.sslnegotiation == "direct",
        "server_settings": {
            "application_name": application_name,
            **({} if is_pooled else pinned),
            **settings,
            **{name: value for name, value in given.items() if value},
        },
    }


def _own_certificate(config: DatabaseConfig) -> str | None:
    """Return the only form in which asyncpg accepts a client's certificate without a context."""
    if config.is_tls_certain or not config.sslcert:
        return None
    fields = ("sslcert", "sslkey", "sslpassword")
    return "postgresql:///?" + urlencode({each: getattr(config, each) for each in fields})
