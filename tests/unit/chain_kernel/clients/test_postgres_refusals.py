"""What a driver raised becomes an error that says what to do, without a secret."""

import asyncpg
import pytest

from chain_kernel.clients.database_config import DatabaseConfig
from chain_kernel.clients.postgres_errors import connect_refusal, schema_refusal, statement_refusal
from chain_kernel.errors import ConnectError, OrderchainError, RetryError, SchemaError

SECRET = "Tr0ub4dor"
CONFIG = DatabaseConfig(host="db.example", user="user", password=SECRET, dbname="orders")


@pytest.mark.parametrize(
    "error",
    [
        asyncpg.UndefinedTableError('relation "chain_page" does not exist'),
        asyncpg.UndefinedFunctionError("function chain_events(integer) does not exist"),
        asyncpg.UndefinedColumnError('column "ids" does not exist'),
        asyncpg.InvalidSchemaNameError('schema "orders" does not exist'),
    ],
)
def test_schema_refusal_names_what_is_missing_and_how_to_apply(error: Exception) -> None:
    refusal = schema_refusal(error)
    assert isinstance(refusal, SchemaError)
    assert str(refusal) == (
        "schema was 'none, or of another version', "
        f"expected the tables that `chainctl schema apply [--part]` makes ({error})"
    )


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
        (asyncpg.TooManyConnectionsError("full"), RetryError, "not ready: full"),
        (asyncpg.CannotConnectNowError(""), RetryError, "not ready: CannotConnectNowError"),
        (asyncpg.AdminShutdownError("stopping"), RetryError, "not ready: stopping"),
        (TimeoutError(), ConnectError, "silent"),
        (ConnectionRefusedError(111, "refused"), ConnectError, "listens at db.example:6432"),
        (ConnectionResetError("reset"), ConnectError, "listens at db.example:6432"),
        (asyncpg.InterfaceError(f"with {SECRET}"), ConnectError, "InterfaceError"),
    ],
)
def test_failed_connect_is_reported(
    error: Exception, kind: type[OrderchainError], words: str
) -> None:
    refusal = connect_refusal(error, CONFIG, "db.example", 6432)
    assert type(refusal) is kind
    assert words in str(refusal)
    assert SECRET not in str(refusal)
    assert "\n" not in str(refusal)


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
        (TimeoutError(), RetryError, "no answer in time"),
        (ConnectionResetError("reset"), RetryError, "reset"),
        (ConnectionResetError(), RetryError, "the statement failed: ConnectionResetError"),
        (asyncpg.InterfaceError("closed"), RetryError, "closed"),
        (
            asyncpg.InternalClientError(
                "cannot switch to state 12; another operation (2) is in progress"
            ),
            RetryError,
            "the statement failed: the connection to the database broke",
        ),
        (asyncpg.InterfaceError(""), RetryError, "the statement failed: InterfaceError"),
        (asyncpg.DivisionByZeroError("by zero"), OrderchainError, "refused the statement: by zero"),
        (ZeroDivisionError("ours"), ZeroDivisionError, "ours"),
    ],
)
def test_failed_statement_is_reported(error: Exception, kind: type[Exception], words: str) -> None:
    refusal = statement_refusal(error, CONFIG, "gap_reader")
    assert type(refusal) is kind
    assert words in str(refusal)
    assert SECRET not in str(refusal)
