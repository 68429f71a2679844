"""Turns what a database driver raised at connect into an error of ours, without a secret in it.

The kernel imports no driver: PostgreSQL's own five-character codes say enough (appendix A of its
manual, "PostgreSQL Error Codes").
"""

from __future__ import annotations

from ssl import SSLError
from typing import Final

from orderchain.dsn import hosts_of, login_of, mask_dsn
from orderchain.errors import ConnectError, OrderchainError, RetryError, SchemaError, SettingError
from orderchain.reasons import reason_of

_EXPECTED_BY_SQLSTATE: Final = {
    "28P01": "a login that the server accepts (wrong user or password)",
    "28000": "a login that the server accepts",
    "3D000": "a database that exists",
}
_SCHEMA_SQLSTATES: Final = frozenset({"42P01", "3F000", "42883", "42703"})
_SERVER_AWAY_SQLSTATES: Final = frozenset({"57P01", "57P02", "57P03"})
_TOO_MANY_SQLSTATE: Final = "53300"
_NOT_ALLOWED_SQLSTATE: Final = "42501"
_DEFAULT_PORT: Final = 5432


def sqlstate_of(error: BaseException) -> str:
    """Return the code that PostgreSQL gave with `error`; empty when it did not come from there."""
    return str(getattr(error, "sqlstate", "") or "")


def connect_refusal(error: BaseException, dsn: str) -> OrderchainError:
    """Return what to raise when connecting to `dsn` raised `error`.

    RetryError where the server starts, stops or is full; SettingError where the DSN cannot be
    read; else ConnectError.
    """
    state, reason = sqlstate_of(error), reason_of(error)
    if state in _SERVER_AWAY_SQLSTATES or state == _TOO_MANY_SQLSTATE:
        return RetryError(f"the database is not ready: {reason}")
    if state == _NOT_ALLOWED_SQLSTATE:
        return _not_allowed(dsn, "may connect to this database", reason)
    if state in _EXPECTED_BY_SQLSTATE:
        return ConnectError("database", mask_dsn(dsn), _EXPECTED_BY_SQLSTATE[state])
    if isinstance(error, TimeoutError):
        return ConnectError("database", mask_dsn(dsn), "a server that answers (it is silent)")
    if isinstance(error, SSLError):
        return ConnectError("database", mask_dsn(dsn), f"TLS that both sides accept ({reason})")
    if isinstance(error, OSError):
        return ConnectError("database", mask_dsn(dsn), _listening(dsn))
    if isinstance(error, ValueError) and not state:
        return SettingError("database", mask_dsn(dsn), "a URL postgresql://user@host:port/name")
    return ConnectError("database", mask_dsn(dsn), f"a connection ({type(error).__name__})")


def statement_refusal(
    error: Exception,
    dsn: str,
    *,
    driver_errors: tuple[type[Exception], ...],
    deadline_seconds: float,
    role: str,
) -> Exception:
    """Return what to raise when a statement on an open connection to `dsn` raised `error`.

    `driver_errors` are the base classes of what the driver raises, `role` is the one whose members
    may do this. SchemaError where our tables are not there, ConnectError where the login may not do
    this, RetryError where the connection broke or the deadline passed; `error` itself where it is
    none of the database's.
    """
    if refusal := schema_refusal(error) or privilege_refusal(error, dsn, role):
        return refusal
    if isinstance(error, TimeoutError):
        return RetryError(f"no answer within {deadline_seconds} s")
    if isinstance(error, (OSError, *driver_errors)):
        return RetryError(f"the statement failed: {reason_of(error)}")
    return error


def schema_refusal(error: BaseException) -> SchemaError | None:
    """Return a SchemaError when `error` tells that our tables are not there, else None.

    Those of another version may be: what is missing is named.
    """
    if sqlstate_of(error) not in _SCHEMA_SQLSTATES:
        return None
    expected = f"the tables that `chainctl schema apply` makes ({reason_of(error)})"
    return SchemaError("schema", "none, or of another version", expected)


def privilege_refusal(error: BaseException, dsn: str, role: str) -> ConnectError | None:
    """Return a ConnectError when the login of `dsn` may not do what was asked, else None.

    It names the login, the `role` whose members may, and what the server said, which names the
    table or the function.
    """
    if sqlstate_of(error) != _NOT_ALLOWED_SQLSTATE:
        return None
    return _not_allowed(dsn, f"is a member of {role}", reason_of(error))


def _not_allowed(dsn: str, login_that: str, reason: str) -> ConnectError:
    login = login_of(dsn)
    told = f"login {login}: {reason}" if login else reason
    return ConnectError("database", mask_dsn(dsn), f"a login that {login_that} ({told})")


def _listening(dsn: str) -> str:
    hosts = hosts_of(dsn)
    if not hosts:
        return "a server that listens at the given address"
    return f"a server that listens at {hosts if ':' in hosts else f'{hosts}:{_DEFAULT_PORT}'}"
