"""What a driver raised becomes an error that says what to do, without a secret."""

from __future__ import annotations

import ssl

import asyncpg
import pytest

from orderchain.errors import (
    ConnectError,
    OrderchainError,
    RetryError,
    SchemaError,
    SettingError,
)
from orderchain.refusals import (
    connect_refusal,
    privilege_refusal,
    schema_refusal,
    sqlstate_of,
    statement_refusal,
)

SECRET = "Tr0ub4dor"
DSN = f"postgresql://user:{SECRET}@db.example:6432/orders"


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (asyncpg.InvalidPasswordError("no"), ConnectError, "wrong user or password"),
        (asyncpg.InvalidAuthorizationSpecificationError("no"), ConnectError, "login"),
        (asyncpg.InvalidCatalogNameError("no"), ConnectError, "a database that exists"),
        (
            asyncpg.InsufficientPrivilegeError("permission denied for database"),
            ConnectError,
            "a login that may connect to this database (login user: permission denied for dat",
        ),
        (asyncpg.TooManyConnectionsError("full"), RetryError, "not ready"),
        (asyncpg.CannotConnectNowError(""), RetryError, "not ready: CannotConnectNowError"),
        (asyncpg.CannotConnectNowError("starting"), RetryError, "not ready"),
        (asyncpg.AdminShutdownError("stopping"), RetryError, "not ready"),
        (TimeoutError(), ConnectError, "silent"),
        (ConnectionRefusedError(111, "refused"), ConnectError, "listens at db.example:6432"),
        (ConnectionResetError("reset"), ConnectError, "listens at db.example:6432"),
        (ssl.SSLCertVerificationError("untrusted"), ConnectError, "TLS that both sides accept"),
        (ValueError("invalid DSN"), SettingError, "a URL postgresql://"),
        (RuntimeError(f"with {SECRET}"), ConnectError, "RuntimeError"),
    ],
)
def test_connect_refusal_says_what_to_do(
    error: Exception, kind: type[OrderchainError], words: str
) -> None:
    refusal = connect_refusal(error, DSN)
    assert type(refusal) is kind
    assert words in str(refusal)
    assert SECRET not in str(refusal)
    assert "\n" not in str(refusal)


@pytest.mark.parametrize("piece", ["12/", "a/", "?", "#", "a@", ":"])
def test_connect_refusal_with_unescaped_password_shows_no_piece_of_it(piece: str) -> None:
    dsn = f"postgresql://user:{piece}{SECRET}@host:5432/orders"
    for error in (OSError("no"), ValueError("no"), TimeoutError()):
        assert SECRET not in str(connect_refusal(error, dsn))
    assert "user:12" not in str(connect_refusal(OSError("no"), dsn))


def test_connect_refusal_without_port_names_the_usual_one() -> None:
    refusal = connect_refusal(OSError("no"), "postgresql://user@db.example/orders")
    assert "listens at db.example:5432" in str(refusal)


@pytest.mark.parametrize(
    "error",
    [
        asyncpg.UndefinedTableError("no"),
        asyncpg.UndefinedFunctionError("no"),
        asyncpg.UndefinedColumnError("no"),
        asyncpg.InvalidSchemaNameError("no"),
    ],
)
def test_schema_refusal_with_missing_table_tells_how_to_apply(error: Exception) -> None:
    refusal = schema_refusal(error)
    assert isinstance(refusal, SchemaError)
    assert "chainctl schema apply" in str(refusal)
    assert str(error) in str(refusal)


@pytest.mark.parametrize("error", [asyncpg.UniqueViolationError("no"), OSError(), ValueError()])
def test_schema_refusal_with_any_other_error_is_none(error: Exception) -> None:
    assert schema_refusal(error) is None


def test_sqlstate_is_the_servers_code_or_empty() -> None:
    assert sqlstate_of(asyncpg.UniqueViolationError("no")) == "23505"
    assert sqlstate_of(OSError()) == ""


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (asyncpg.UndefinedTableError("no table"), SchemaError, "chainctl schema apply"),
        (
            asyncpg.InsufficientPrivilegeError("permission denied for table chain_event"),
            ConnectError,
            "expected a login that is a member of gap_reader "
            "(login user: permission denied for table chain_event)",
        ),
        (TimeoutError(), RetryError, "within 3.0 s"),
        (ConnectionResetError("reset"), RetryError, "reset"),
        (ConnectionResetError(), RetryError, "the statement failed: ConnectionResetError"),
        (asyncpg.InterfaceError("closed"), RetryError, "closed"),
        (asyncpg.InterfaceError(""), RetryError, "the statement failed: InterfaceError"),
        (ZeroDivisionError("ours"), ZeroDivisionError, "ours"),
    ],
)
def test_statement_that_failed_says_what_to_do_next(
    error: Exception, kind: type[Exception], words: str
) -> None:
    refusal = statement_refusal(
        error,
        DSN,
        driver_errors=(asyncpg.PostgresError, asyncpg.InterfaceError),
        deadline_seconds=3.0,
        role="gap_reader",
    )
    assert type(refusal) is kind
    assert words in str(refusal)
    assert SECRET not in str(refusal)


def test_privilege_refusal_of_an_address_without_a_user_names_the_login_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    error = asyncpg.InsufficientPrivilegeError("permission denied for table chain_head")
    monkeypatch.setenv("PGUSER", "svc")
    refusal = privilege_refusal(error, "postgresql://db.example/orders", "sequencer_writer")
    assert "(login svc: permission denied for table chain_head)" in str(refusal)


@pytest.mark.parametrize("error", [asyncpg.UniqueViolationError("no"), OSError(), TimeoutError()])
def test_privilege_refusal_of_any_other_error_is_none(error: Exception) -> None:
    assert privilege_refusal(error, DSN, "gap_reader") is None
