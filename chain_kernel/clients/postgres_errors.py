"""Errors of PostgreSQL and its driver, in one line each; none shows a secret."""

from __future__ import annotations

import socket
import ssl
from typing import TYPE_CHECKING, Final

import asyncpg

from chain_kernel.clients.database_config import server_name
from chain_kernel.errors import (
    ConnectError,
    OrderchainError,
    RetryError,
    SchemaError,
)
from chain_kernel.sql import NUMBERED, renumbering
from chain_kernel.text import reason_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from chain_kernel.clients.database_config import DatabaseConfig

# What the driver raises, so that a double of the database can raise it, too.
ConnectionDoesNotExistError = asyncpg.ConnectionDoesNotExistError
InFailedSQLTransactionError = asyncpg.InFailedSQLTransactionError
InterfaceError = asyncpg.InterfaceError
UniqueViolationError = asyncpg.UniqueViolationError

DRIVER_ERRORS: Final = (
    OSError,  # includes TimeoutError, ssl.SSLError and all errors of the network
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    # What the driver raises when the server ended the session between two of our statements.
    asyncpg.InternalClientError,
)
"""All errors that a connection raises because of servers and networks."""

SERVER_ERRORS: Final = (TimeoutError, ConnectionError, *DRIVER_ERRORS[1:])
"""The same for code that also works with files, whose errors are OSErrors, too."""

QUERY_CANCELED: Final = "57014"
TOO_MANY_CONNECTIONS: Final = "53300"
UNIQUE_VIOLATION: Final = "23505"

_PASSING_CLASSES: Final = frozenset({"08", "40", "53", "55", "57", "58"})
"""Classes of SQLSTATE: connection, rollback, resources (disk full), object in use, intervention,
system error. The statement itself causes none of them, so the same one may succeed later."""

_SCHEMA_MISSING: Final = frozenset({"42P01", "3F000", "42883", "42703"})
"""For a table, a schema, a function, a column."""

_NOT_ALLOWED: Final = "42501"
_READ_ONLY: Final = "25006"
"""On a standby, or with a role that reads by default."""

_PROTOCOL_VIOLATION: Final = "08P01"

_WRONG_PASSWORD: Final = "28P01"  # noqa: S105 - a code
_NO_DATABASE: Final = "3D000"
_AUTHORISATION_CLASS: Final = "28"

_CERTIFICATE_TIMES: Final = frozenset({9, 10})
"""OpenSSL's codes for a certificate that is not valid yet, and for one that has expired."""
_CERTIFICATE_NAMES: Final = frozenset({62, 64})
"""The same for a host's name, and for its address, that the certificate does not have."""


class PoolerFound(ConnectError):
    """A pooler is in between, and another session may serve each transaction."""


class SeveralPrimaries(RetryError):
    """Servers are primaries of which none has replaced the others: none of them is used."""


def sqlstate_of(error: BaseException) -> str:
    """Return the code that PostgreSQL gave with `error`; empty when `error` is not from there."""
    return str(getattr(error, "sqlstate", "") or "")


def schema_refusal(error: BaseException) -> SchemaError | None:
    """Return a SchemaError when `error` means that our tables do not exist, else None."""
    if sqlstate_of(error) in _SCHEMA_MISSING:
        expected = f"the tables that `chainctl schema apply [--part]` makes ({reason_of(error)})"
        return SchemaError("schema", "none, or of another version", expected)
    return None


def connect_refusal(
    error: Exception, config: DatabaseConfig, host: str, port: int
) -> OrderchainError:
    """Return what to raise when connecting to one server raised `error`; never shows a secret."""
    server = server_name(host, port)
    if isinstance(error, asyncpg.TargetServerAttributeNotMatched):
        return RetryError(f"database {server}: not {_target_missed(config)}")
    state = sqlstate_of(error)
    if state == _PROTOCOL_VIOLATION and "startup parameter" in str(error):
        return pooler_found(config, reason_of(error))
    if state[:2] in _PASSING_CLASSES:
        return RetryError(f"database {server}: not ready: {reason_of(error)}")
    if len(config.addresses) == 1:
        return ConnectError("database", config.shown, _expected(error, config, f"at {server}"))
    expected = _expected(error, config, "there")
    return ConnectError("database", config.shown, f"{server}: {expected}")


def statement_refusal(
    error: Exception,
    config: DatabaseConfig,
    role: str,
    what: str = "the statement",
    numbered: Mapping[str, str] = NUMBERED,
) -> Exception:
    """Return what to raise when `what`, on an open connection, raised `error`.

    `role` is the one whose members may do it, `numbered` as of a `SessionConfig`. SchemaError where
    our tables do not exist, or a sequence gave a number that its table has already,
    ConnectError where the login may not do this, RetryError where the connection broke, the
    deadline passed or the same statement may succeed later, on another server too; OrderchainError
    where it never will; `error` itself where it is not an error of the database.
    """
    if not isinstance(error, DRIVER_ERRORS):
        return error
    if refusal := schema_refusal(error) or _numbers_refusal(error, numbered):
        return refusal
    state = sqlstate_of(error)
    if state == _NOT_ALLOWED:
        return _not_allowed(config, f"is a member of {role}", error)
    if isinstance(error, TimeoutError):
        return RetryError(f"{what}: the database gave no answer in time ({config.shown})")
    if state and state != _READ_ONLY and state[:2] not in _PASSING_CLASSES:
        return OrderchainError(f"the database refused {what}: {reason_of(error)}")
    return RetryError(f"{what} failed: {reason_of(error)}")


def _numbers_refusal(error: Exception, numbered: Mapping[str, str]) -> SchemaError | None:
    """Return a SchemaError where a sequence gave a number that its table has already."""
    table = str(getattr(error, "table_name", None))
    if getattr(error, "constraint_name", None) != f"{table}_pkey" or table not in numbered:
        return None
    lifted = renumbering(table, numbered[table])
    expected = f"above them (logical replication copies no sequences): as the owner, {lifted}"
    return SchemaError(f"sequence of {table}", "below its rows", expected)


def read_only_refusal(error: Exception, config: DatabaseConfig, role: str) -> ConnectError | None:
    """Return a ConnectError when a standby or a read-only session was asked to write, else None.

    For callers that write once and end. Services retry: another server may be about to take over.
    """
    if sqlstate_of(error) != _READ_ONLY:
        return None
    return _not_allowed(config, f"may write (on the primary) and is a member of {role}", error)


def _not_allowed(config: DatabaseConfig, login_that: str, error: Exception) -> ConnectError:
    expected = f"a login that {login_that} (login {config.login}: {reason_of(error)})"
    return ConnectError("database", config.shown, expected)


def pooler_found(config: DatabaseConfig, sign: str) -> PoolerFound:
    """Return the refusal of a pooler, which was known by `sign`."""
    what = "a direct connection to PostgreSQL, at the server's own port"
    expected = f"{what} (this one goes through a pooler, {sign})"
    return PoolerFound("database", config.shown, expected)


def _expected(error: Exception, config: DatabaseConfig, where: str) -> str:
    state = sqlstate_of(error)
    if state == _WRONG_PASSWORD:
        return "a login that the server accepts (wrong user or password)"
    if state[:2] == _AUTHORISATION_CLASS:
        hint = (
            "" if config.is_tls_certain else f"; does it ask for TLS? sslmode is {config.tls_mode}"
        )
        return f"a login that the server accepts ({reason_of(error)}{hint})"
    if state == _NO_DATABASE:
        return "a database that exists"
    if state == _NOT_ALLOWED:
        login = f"login {config.login}: {reason_of(error)}"
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
        return f"a server that listens {where}"
    return f"a connection ({type(error).__name__})"


def _expected_of_tls(error: ssl.SSLError, config: DatabaseConfig) -> str:
    if not isinstance(error, ssl.SSLCertVerificationError):
        if "ALERT" not in (error.reason or ""):
            return f"TLS that both sides accept ({error.reason or reason_of(error)})"
        # A server ends TLS nearly always for the client's certificate.
        if config.sslcert:
            refused = f"not {config.sslcert} ({error.reason})"
            return f"a client certificate that the server accepts, {refused}"
        return f"a client certificate, or other TLS: none was given (sslcert; {error.reason})"
    reason = error.verify_message.rstrip(".")
    if error.verify_code in _CERTIFICATE_TIMES:
        return f"a server's certificate that is valid today ({reason})"
    if error.verify_code in _CERTIFICATE_NAMES:
        return f"a server's certificate for the host that was asked for ({reason})"
    return f"a server's certificate signed by sslrootcert {config.sslrootcert} ({reason})"


def may_another_do(error: Exception) -> bool:
    """Return whether the next server is tried: not where this one has refused our login."""
    state = sqlstate_of(error)
    return state != _PROTOCOL_VIOLATION and state[:2] in {"", *_PASSING_CLASSES}


def refusal_of_all(refusals: list[OrderchainError], config: DatabaseConfig) -> OrderchainError:
    """Return one refusal for all servers: a lasting one only where each of them is lasting."""
    if len(refusals) == 1:
        return refusals[0]
    if any(isinstance(refusal, RetryError) for refusal in refusals):
        return RetryError(_joined(refusals, "expected "))
    return ConnectError("database", config.shown, _joined(refusals, ""))


def _joined(refusals: list[OrderchainError], before_expected: str) -> str:
    texts = (
        before_expected + each.expected if isinstance(each, ConnectError) else str(each)
        for each in refusals
    )
    return "; ".join(dict.fromkeys(texts))


def _target_missed(config: DatabaseConfig) -> str:
    """Return what a server is not, and why that may be forever: a role's own setting counts."""
    missed = f"{config.target_session_attrs} now"
    if config.target_session_attrs != "read-write":
        return missed
    return f"{missed} (a read-only login, such as gap_reader, never is: it needs primary)"


def is_too_many_connections(error: BaseException) -> bool:
    """Return whether `error`, or its cause, says that server or role have no connection left."""
    return TOO_MANY_CONNECTIONS in (sqlstate_of(error), sqlstate_of(error.__cause__ or error))


def rolled_back() -> asyncpg.PostgresError:
    """Return the error of a commit that the server has answered with a rollback."""
    return asyncpg.InFailedSQLTransactionError(
        "a statement has failed and its error was hidden: the transaction is rolled back"
    )
