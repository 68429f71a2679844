"""The schema goes in whole or not at all, with any role that applies it."""

from typing import Any
from uuid import UUID

import asyncpg
import pytest

from chain_kernel.sql import GAP_READER, LOGIN_ROLES, OWNER, SCHEMA_VERSION, schema_sql
from local_stack import PostgresServer
from local_stack.postgres import SUPERUSER
from tests.opened import connected

_TABLES = "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'"
_ROLES = "SELECT count(*) FROM pg_roles WHERE rolname = ANY($1)"
_ALL_ROLES = [OWNER, *LOGIN_ROLES]


async def apply_as(dsn: str, *, and_then: str = "") -> list[str]:
    """Apply the schema and `and_then`; return what the server had to say about it."""
    notices: list[str] = []
    connection = await asyncpg.connect(dsn)
    connection.add_log_listener(lambda _, message: notices.append(str(message.message)))
    try:
        async with connection.transaction():
            await connection.execute(schema_sql() + and_then)
    finally:
        await connection.close()
    return notices


async def value(dsn: str, query: str, *arguments: Any) -> Any:
    async with connected(dsn) as connection:
        return await connection.fetchval(query, *arguments)


def dsn_of(server: PostgresServer, role: str, password: str, database: str) -> str:
    return f"postgresql://{role}:{password}@127.0.0.1:{server.config.port}/{database}"


async def test_apply_by_the_superuser_makes_the_tables_and_roles(empty_database: str) -> None:
    assert await apply_as(empty_database) == []
    version = await value(empty_database, "SELECT version FROM schema_version")
    assert version == SCHEMA_VERSION
    assert await value(empty_database, _ROLES, _ALL_ROLES) == len(_ALL_ROLES)


async def test_apply_twice_is_refused_whole(database: str) -> None:
    before = await value(database, "SELECT database_id FROM schema_version")
    with pytest.raises(asyncpg.DuplicateTableError):
        await apply_as(database)
    assert await value(database, "SELECT database_id FROM schema_version") == before
    assert isinstance(before, UUID)


async def test_apply_that_breaks_at_its_end_leaves_nothing(empty_database: str) -> None:
    with pytest.raises(asyncpg.DivisionByZeroError):
        await apply_as(empty_database, and_then="SELECT 1 / 0;")
    assert await value(empty_database, _TABLES) == 0


def prepare(server: PostgresServer, database: str, statements: str) -> None:
    server.create_database(database)
    server.execute(statements, database=database)


_LEFT_TO_A_SUPERUSER = {
    f"left to postgres or a superuser: REVOKE EXECUTE ON FUNCTION {maker} FROM PUBLIC;"
    for maker in ("lo_creat(integer)", "lo_create(oid)", "lo_from_bytea(oid,bytea)")
}
_LEFT_TO_THE_OWNER = {
    "left to postgres or a superuser: REVOKE CREATE, TEMPORARY ON DATABASE orders FROM PUBLIC;"
}


@pytest.mark.parametrize(
    ("rights", "left"),
    [
        ("ALTER DATABASE orders OWNER TO deployer", _LEFT_TO_A_SUPERUSER),
        (
            "GRANT CREATE, USAGE ON SCHEMA public TO deployer WITH GRANT OPTION",
            _LEFT_TO_A_SUPERUSER | _LEFT_TO_THE_OWNER,
        ),
    ],
    ids=["database owner", "grant option on the schema"],
)
async def test_apply_by_a_role_that_is_no_superuser_works_and_names_what_is_left_to_one(
    bare_server: PostgresServer, rights: str, left: set[str]
) -> None:
    login = "CREATE ROLE deployer LOGIN CREATEROLE PASSWORD 'd'"
    prepare(bare_server, "orders", f"{login}; {rights};")
    deployer = dsn_of(bare_server, "deployer", "d", "orders")
    assert set(await apply_as(deployer)) == left
    create = "SELECT chain_create(1, decode(repeat('00', 32), 'hex'), 't.1', 0, 100)"
    assert await value(deployer, create) is True
    owners = "SELECT string_agg(DISTINCT tableowner, ',') FROM pg_tables WHERE schemaname = $1"
    assert await value(deployer, owners, "public") == OWNER


@pytest.mark.nightly
async def test_member_of_the_owner_needs_no_createrole(bare_server: PostgresServer) -> None:
    prepare(bare_server, "first", "")
    await apply_as(bare_server.dsn(SUPERUSER, "first"))
    bare_server.execute(
        "CREATE ROLE deployer LOGIN PASSWORD 'd'; GRANT orderchain_owner TO deployer;"
        "ALTER ROLE gap_reader CONNECTION LIMIT 3;"
        "ALTER ROLE gap_reader SET default_transaction_read_only = off;"
    )
    prepare(bare_server, "second", "ALTER DATABASE second OWNER TO deployer;")
    await apply_as(dsn_of(bare_server, "deployer", "d", "second"))
    second = bare_server.dsn(SUPERUSER, "second")
    # What the DBA has set for the role since is left alone.
    limit = "SELECT rolconnlimit FROM pg_roles WHERE rolname = $1"
    assert await value(second, limit, GAP_READER) == 3
    settings = "SELECT setconfig FROM pg_db_role_setting WHERE setrole = 'gap_reader'::regrole"
    assert await value(second, settings) == ["default_transaction_read_only=off"]


async def test_apply_without_rights_leaves_nothing(bare_server: PostgresServer) -> None:
    prepare(bare_server, "orders", "CREATE ROLE deployer LOGIN CREATEROLE PASSWORD 'd'")
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await apply_as(dsn_of(bare_server, "deployer", "d", "orders"))
    superuser = bare_server.dsn(SUPERUSER, "orders")
    assert await value(superuser, _TABLES) == 0
    assert await value(superuser, _ROLES, _ALL_ROLES) == 0
