"""Connections to PostgreSQL: how one is opened, and in one line why none is.

Nothing else opens a connection of asyncpg or imports it.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from urllib.parse import urlencode

import asyncpg
from asyncpg.pgproto import pgproto

from orderchain.clients import abort
from orderchain.clients.database_config import server_name, warn_of_exposure
from orderchain.errors import ConnectError, OrderchainError, RetryError, SchemaError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from orderchain.clients.database_config import DatabaseConfig

    Record: TypeAlias = asyncpg.Record
    Connection: TypeAlias = asyncpg.Connection[Record]
    LogMessage: TypeAlias = asyncpg.PostgresLogMessage

DriverUUID: Final = pgproto.UUID
"""The driver's own UUID, which costs a tenth of the standard library's, and is one."""

DRIVER_ERRORS: Final = (
    OSError,  # TimeoutError, ssl.SSLError and all of the network's are such
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    # What the driver raises when the server ended the session between two of our statements.
    asyncpg.InternalClientError,
)
"""All that a connection raises for what servers and networks do."""

SERVER_ERRORS: Final = (TimeoutError, ConnectionError, *DRIVER_ERRORS[1:])
"""The same where files are worked on beside it, whose errors are of the operating system, too."""

CLOSE_SECONDS: Final = 1.0
"""A connection that does not close by then is dropped: the server cleans up behind it."""

TOO_MANY_CONNECTIONS: Final = "53300"
UNIQUE_VIOLATION: Final = "23505"

_PASSING_CLASSES: Final = frozenset({"08", "40", "53", "55", "57", "58"})
"""Of SQLSTATEs: connection, rollback, resources (disk full), object in use, intervention, system
error. The statement itself is guilty of none of them, so the same one may succeed later."""

_SCHEMA_MISSING: Final = frozenset({"42P01", "3F000", "42883", "42703"})
"""Of a table, a schema, a function, a column."""

_NOT_ALLOWED: Final = "42501"
_READ_ONLY: Final = "25006"
"""On a standby, or with a role that reads by default."""

_PROTOCOL_VIOLATION: Final = "08P01"

_WRONG_PASSWORD: Final = "28P01"  # noqa: S105 - a code
_NO_DATABASE: Final = "3D000"
_AUTHORISATION_CLASS: Final = "28"

_HANG_UPS: Final = (ConnectionResetError, BrokenPipeError, asyncpg.ConnectionDoesNotExistError)

_ALERT_SECONDS: Final = 3.0
"""The longest look for the reason of a hang-up: two round trips."""
_TLS_REQUEST: Final = struct.pack("!ii", 8, 80_877_103)
"""What asks a server of PostgreSQL for TLS; it answers with one letter."""

_CERTIFICATE_TIMES: Final = frozenset({9, 10})
"""OpenSSL's codes for a certificate that is not valid yet, and for one that has expired."""
_CERTIFICATE_NAMES: Final = frozenset({62, 64})
"""The same for a host's name, and for its address, that the certificate does not have."""


class PoolerFound(ConnectError):
    """A pooler stands between, and each transaction may be served by another session."""


class _Connection(asyncpg.Connection):  # type: ignore[misc]  # asyncpg is untyped
    """A connection whose commit fails where the server has rolled back instead.

    That is what the server does with a transaction that an error has broken, and asyncpg passes
    over the word in which it says so. The block of the transaction may have hidden that error.
    """

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


def rolled_back() -> asyncpg.PostgresError:
    """Return what a commit raises that the server has answered with a rollback."""
    return asyncpg.InFailedSQLTransactionError(
        "a statement has failed and its error was hidden: the transaction is rolled back"
    )


async def connect(
    config: DatabaseConfig,
    *,
    application_name: str,
    within_seconds: float,
    settings: Mapping[str, str] | None = None,
    statement_seconds: float | None = None,
    is_direct: bool = False,
    is_pooled: bool = False,
) -> Connection:
    """Return a new connection to the first server that will do, of those that `config` names.

    Each of them gets its share of `within_seconds`, so that one that is silent does not keep us
    from the next. `settings` are those of the session; what `config` says of them counts more.
    `statement_seconds` is the deadline of each statement that has none of its own. `is_direct`
    refuses a pooler; `is_pooled` makes no prepared statements, which one would mix up.
    The first connection to a host where another machine may pose as the server logs a warning.
    Raises ConnectError, which says in one line what each server lacks; RetryError where that may
    pass: it starts, stops or is full, or none has the role that is wanted now; PoolerFound;
    SettingError for files gone since.
    """
    warn_of_exposure(config)
    options = _options(config, application_name, settings or {})
    options["command_timeout"] = statement_seconds
    if is_pooled:
        options["statement_cache_size"] = 0
    loop = asyncio.get_running_loop()
    end = loop.time() + within_seconds
    # A standby is preferred: only when none will do does any server.
    targets = _targets(config)
    attempts = [(target, at) for target in targets for at in config.addresses]
    refusals: list[tuple[OrderchainError, Exception]] = []
    for index, (target, (host, port)) in enumerate(attempts):
        share = (end - loop.time()) / (len(attempts) - index)
        try:
            async with asyncio.timeout(_seconds(config, share)):
                connection = await _connect_one(config, options, host, port, target)
                if is_direct:
                    await _require_direct(connection, config)
                return connection
        except DRIVER_ERRORS as error:
            if isinstance(error, _HANG_UPS) and config.is_tls_certain:
                error = await _alert(config, host, port) or error
            refusal = connect_refusal(error, config, host, port)
            if not _may_another_do(error):
                raise refusal from error
            refusals.append((refusal, error))
    causes = [error for _, error in refusals]
    cause = next((error for error in causes if is_too_many_connections(error)), causes[-1])
    raise _of_all([refusal for refusal, _ in refusals], config) from cause


def is_too_many_connections(error: BaseException) -> bool:
    """Say whether the server, or the role, has no connection left: `error`, or what it is from."""
    return TOO_MANY_CONNECTIONS in (sqlstate_of(error), sqlstate_of(error.__cause__ or error))


async def close_connection(connection: Connection, within_seconds: float = CLOSE_SECONDS) -> None:
    """Close `connection` in good time, or drop it; never raises for what the server does."""
    with suppress(*DRIVER_ERRORS):
        await connection.close(timeout=within_seconds)


# -- what errors mean --------------------------------------------------------------------------


def sqlstate_of(error: BaseException) -> str:
    """Return the code that PostgreSQL gave with `error`; empty when it did not come from there."""
    return str(getattr(error, "sqlstate", "") or "")


def schema_refusal(error: BaseException) -> SchemaError | None:
    """Return a SchemaError when `error` says that our tables are not there, else None."""
    if sqlstate_of(error) in _SCHEMA_MISSING:
        expected = f"the tables that `chainctl schema apply` makes ({_words(error)})"
        return SchemaError("schema", "none, or of another version", expected)
    return None


def connect_refusal(
    error: Exception, config: DatabaseConfig, host: str, port: int
) -> OrderchainError:
    """Return what to raise when connecting to one server raised `error`; never shows a secret."""
    server = server_name(host, port)
    if isinstance(error, asyncpg.TargetServerAttributeNotMatched):
        return RetryError(f"database {server}: not {config.target_session_attrs} now")
    state = sqlstate_of(error)
    if state == _PROTOCOL_VIOLATION and "startup parameter" in str(error):
        return _pooler_found(config, _words(error))
    if state[:2] in _PASSING_CLASSES:
        return RetryError(f"database {server}: not ready: {_words(error)}")
    where = f"{server}: " if len(config.addresses) > 1 else ""
    return ConnectError("database", config.shown, where + _expected(error, config, server))


def statement_refusal(
    error: Exception, config: DatabaseConfig, role: str, what: str = "the statement"
) -> Exception:
    """Return what to raise when `what`, on an open connection, raised `error`.

    `role` is the one whose members may do it. SchemaError where our tables are not there,
    ConnectError where the login may not do this, RetryError where the connection broke, the
    deadline passed or the same statement may succeed later, on another server too; OrderchainError
    where it never will; `error` itself where it is none of the database's.
    """
    if not isinstance(error, DRIVER_ERRORS):
        return error
    if refusal := schema_refusal(error):
        return refusal
    state = sqlstate_of(error)
    if state == _NOT_ALLOWED:
        return _not_allowed(config, f"is a member of {role}", error)
    if isinstance(error, TimeoutError):
        return RetryError(f"{what}: the database gave no answer in time ({config.shown})")
    if state and state != _READ_ONLY and state[:2] not in _PASSING_CLASSES:
        return OrderchainError(f"the database refused {what}: {_words(error)}")
    return RetryError(f"{what} failed: {_words(error)}")


def read_only_refusal(error: Exception, config: DatabaseConfig, role: str) -> ConnectError | None:
    """Return a ConnectError when a standby or a read-only session was to write, else None.

    For those who write once and end. Services retry: another server may be about to take over.
    """
    if sqlstate_of(error) != _READ_ONLY:
        return None
    return _not_allowed(config, f"may write (on the primary) and is a member of {role}", error)


def _not_allowed(config: DatabaseConfig, login_that: str, error: Exception) -> ConnectError:
    expected = f"a login that {login_that} (login {config.login}: {_words(error)})"
    return ConnectError("database", config.shown, expected)


def _pooler_found(config: DatabaseConfig, sign: str) -> PoolerFound:
    expected = f"a direct connection to PostgreSQL (this one goes through a pooler, {sign})"
    return PoolerFound("database", config.shown, expected)


def _expected(error: Exception, config: DatabaseConfig, server: str) -> str:
    """Return the words for what was expected where `error` came up."""
    state = sqlstate_of(error)
    if state == _WRONG_PASSWORD:
        return "a login that the server accepts (wrong user or password)"
    if state[:2] == _AUTHORISATION_CLASS:
        hint = (
            "" if config.is_tls_certain else f"; does it ask for TLS? sslmode is {config.tls_mode}"
        )
        return f"a login that the server accepts ({_words(error)}{hint})"
    if state == _NO_DATABASE:
        return "a database that exists"
    if state == _NOT_ALLOWED:
        login = f"login {config.login}: {_words(error)}"
        return f"a login that may connect to this database ({login})"
    if isinstance(error, ssl.SSLError):
        return _expected_of_tls(error, config)
    if isinstance(error, TimeoutError):
        return "a server that answers in time (it is silent)"
    if isinstance(error, socket.gaierror):
        return f"a host name that can be resolved ({error.strerror})"
    if "rejected SSL upgrade" in str(error):
        return f"a server that speaks TLS: it has none (sslmode is {config.tls_mode})"
    if isinstance(error, OSError):
        return f"a server that listens at {server}"
    return f"a connection ({type(error).__name__})"


def _expected_of_tls(error: ssl.SSLError, config: DatabaseConfig) -> str:
    if not isinstance(error, ssl.SSLCertVerificationError):
        if "ALERT" in (error.reason or ""):
            return _refused_certificate(config, error.reason)
        return f"TLS that both sides accept ({error.reason or _words(error)})"
    reason = error.verify_message.rstrip(".")
    if error.verify_code in _CERTIFICATE_TIMES:
        return f"a server's certificate that is valid today ({reason})"
    if error.verify_code in _CERTIFICATE_NAMES:
        return f"a server's certificate for the host that was asked for ({reason})"
    return f"a server's certificate signed by sslrootcert {config.sslrootcert} ({reason})"


def _refused_certificate(config: DatabaseConfig, reason: str) -> str:
    """Return the words for a server that ends TLS: nearly always over the client's certificate."""
    if config.sslcert:
        return f"a client certificate that the server accepts, not {config.sslcert} ({reason})"
    return f"a client certificate, or other TLS: none was given (sslcert; {reason})"


def _may_another_do(error: Exception) -> bool:
    """Say whether the next server is asked: not where this one has refused whom we are."""
    state = sqlstate_of(error)
    return state != _PROTOCOL_VIOLATION and state[:2] in {"", *_PASSING_CLASSES}


def _of_all(refusals: list[OrderchainError], config: DatabaseConfig) -> OrderchainError:
    """Return one refusal for all servers: a lasting one only where each of them has a cause."""
    if len(refusals) == 1:
        return refusals[0]
    texts = list(dict.fromkeys(_reason_of(refusal) for refusal in refusals))
    if any(isinstance(refusal, RetryError) for refusal in refusals):
        return RetryError("; ".join(texts))
    return ConnectError("database", config.shown, "; ".join(texts))


def _reason_of(refusal: OrderchainError) -> str:
    return refusal.expected if isinstance(refusal, ConnectError) else str(refusal)


# -- opening -----------------------------------------------------------------------------------


async def _connect_one(
    config: DatabaseConfig, options: Mapping[str, Any], host: str, port: int, target: str
) -> Connection:
    """Connect to one server. Whatever asyncpg would take from the environment is given."""
    password = config.read_password(host, port)
    return await asyncpg.connect(
        host=host,
        port=port,
        password=lambda: password,  # as text, an empty one would be looked for elsewhere
        target_session_attrs=target,
        timeout=None,
        connection_class=_Connection,
        **options,
    )


async def _require_direct(connection: Connection, config: DatabaseConfig) -> None:
    """Raise PoolerFound, and give the connection up, where another process serves it than said so.

    A pooler gives its clients numbers of its own. Asked without a prepared statement, which it
    would mix up with those of others, and so without a value beside it.
    """
    question = f"SELECT WHERE pg_backend_pid() = {connection.get_server_pid():d}"
    try:
        if await connection.execute(question) == "SELECT 1":
            return
    except BaseException:
        connection.terminate()
        raise
    connection.terminate()
    raise _pooler_found(config, "which hides the process that serves it")


def _seconds(config: DatabaseConfig, share: float) -> float:
    """Return how long one server may take."""
    seconds, own = max(share, 0.0), float(config.connect_timeout or 0)
    return min(seconds, own) if own else seconds


async def _alert(config: DatabaseConfig, host: str, port: int) -> ssl.SSLError | None:
    """Return the alert with which a server ends TLS, as over a client's certificate; else None.

    It comes when the client takes the connection for open already, and asyncpg loses it.
    """
    if host.startswith("/") or config.sslnegotiation == "direct":
        return None
    try:
        async with asyncio.timeout(_ALERT_SECONDS):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                writer.write(_TLS_REQUEST)
                if await reader.readexactly(1) == b"S":
                    await writer.start_tls(config.tls_context(), server_hostname=host)
                    await reader.read(1)  # the server waits, too, unless it ends the connection
            finally:
                writer.close()  # first: an abort alone leaves a writer of TLS open to itself
                abort(writer.transport)
    except ssl.SSLError as error:
        return error
    except (OSError, EOFError):
        return None
    return None


def _options(
    config: DatabaseConfig, application_name: str, settings: Mapping[str, str]
) -> dict[str, Any]:
    given = {"application_name": config.application_name, "options": config.options}
    return {
        "user": config.login,
        "database": config.database,
        # By name where a session may go on without TLS: with a context asyncpg insists on it.
        "ssl": config.tls_context() if config.is_tls_certain else config.tls_mode,
        "dsn": _own_certificate(config),
        "direct_tls": config.sslnegotiation == "direct",
        "server_settings": {
            "application_name": application_name,
            **settings,
            **{name: value for name, value in given.items() if value},
        },
    }


def _own_certificate(config: DatabaseConfig) -> str | None:
    """Return the only way in which asyncpg takes a client's certificate without a context."""
    if config.is_tls_certain or not config.sslcert:
        return None
    fields = ("sslcert", "sslkey", "sslpassword")
    return "postgresql:///?" + urlencode({each: getattr(config, each) for each in fields})


def _targets(config: DatabaseConfig) -> tuple[str, ...]:
    wanted = config.target_session_attrs or "any"
    return ("standby", "any") if wanted == "prefer-standby" else (wanted,)


def _words(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
