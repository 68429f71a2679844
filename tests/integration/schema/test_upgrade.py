"""`chainctl schema upgrade`: two halves, between which programs of both versions work."""

from pathlib import Path

import asyncpg
import pytest

from chain_kernel.errors import SchemaError
from chain_kernel.sql import OWNER, SCHEMA_VERSION, require_version
from chainctl.database import Connection, connected_to
from chainctl.schema.parts import (
    MIGRATIONS,
    PARTS,
    Migration,
    Version,
    apply_steps,
    migrations_of,
    read_facts,
    read_version,
    schema_differences,
    shipped_facts,
    steps_to,
)
from local_stack import PostgresServer
from local_stack.postgres import SUPERUSER

CHAIN = PARTS["chain"]
NEXT = SCHEMA_VERSION + 1
HALVES = {
    "before": "ALTER TABLE chain_act ADD COLUMN place text NOT NULL DEFAULT '';",
    "after": "ALTER TABLE chain_act DROP COLUMN detail;",
}


@pytest.fixture
def migrations(tmp_path: Path) -> dict[int, Migration]:
    """A migration of the chain's tables, from files."""
    folder = tmp_path / "chain"
    folder.mkdir()
    for half, sql in HALVES.items():
        (folder / f"{NEXT:04}_place_of_acts.{half}.sql").write_text(sql)
    return migrations_of(CHAIN, tmp_path)


async def upgrade(
    connection: Connection, migrations: dict[int, Migration], *, finishes: bool
) -> list[str]:
    version = await read_version(connection, CHAIN)
    assert version is not None
    steps = steps_to(NEXT, version, migrations, finishes=finishes)
    await apply_steps(connection, CHAIN, steps, version)
    return [step.title for step in steps]


async def columns(connection: Connection) -> set[str]:
    rows = await connection.fetch(
        "SELECT attname FROM pg_attribute WHERE attrelid = 'chain_act'::regclass"
    )
    return {row[0] for row in rows} & {"place", "detail"}


async def accepts(connection: Connection, version: int) -> bool:
    """Return whether a program of `version` would work with this database."""
    row = await connection.fetchrow("SELECT version, upgrade_to FROM schema_version")
    try:
        require_version(row, version)
    except SchemaError:
        return False
    return True


async def test_each_half_is_applied_once(database: str, migrations: dict[int, Migration]) -> None:
    async with connected_to(database, 10.0, OWNER) as connection:
        title = f"{NEXT:04}_place_of_acts"
        assert not await accepts(connection, NEXT)
        assert await upgrade(connection, migrations, finishes=False) == [f"{title}.before"]
        assert await upgrade(connection, migrations, finishes=False) == []
        assert await columns(connection) == {"place", "detail"}
        assert await accepts(connection, SCHEMA_VERSION)
        assert await accepts(connection, NEXT)
        assert await upgrade(connection, migrations, finishes=True) == [f"{title}.after"]
        assert await upgrade(connection, migrations, finishes=True) == []
        assert await columns(connection) == {"place"}
        assert not await accepts(connection, SCHEMA_VERSION)
        assert await accepts(connection, NEXT)
        assert await connection.fetchval("SELECT current_user") == SUPERUSER


async def test_failing_half_leaves_nothing(database: str, migrations: dict[int, Migration]) -> None:
    failing = migrations[NEXT]._replace(after="DROP TABLE chain_skip; SELECT 1 / 0;")
    async with connected_to(database, 10.0, OWNER) as connection:
        with pytest.raises(asyncpg.DivisionByZeroError):
            await upgrade(connection, {NEXT: failing}, finishes=True)
        assert await read_version(connection, CHAIN) == Version(SCHEMA_VERSION, NEXT)
        assert await connection.fetchval("SELECT to_regclass('chain_skip') IS NOT NULL")


async def test_half_waits_for_no_held_table(
    database: str, migrations: dict[int, Migration]
) -> None:
    async with (
        connected_to(database, 10.0, OWNER) as connection,
        connected_to(database, 10.0, OWNER) as holder,
        holder.transaction(),
    ):
        await holder.execute("LOCK TABLE chain_act IN ACCESS SHARE MODE")
        with pytest.raises(asyncpg.LockNotAvailableError):
            await upgrade(connection, migrations, finishes=False)
        assert await read_version(connection, CHAIN) == Version(SCHEMA_VERSION, None)


@pytest.mark.parametrize("name", PARTS)
async def test_all_migrations_lead_from_the_base_to_what_is_shipped(
    postgres_server: PostgresServer, empty_database_name: str, name: str
) -> None:
    part, migrations = PARTS[name], migrations_of(PARTS[name])
    base = part.text()
    if migrations:
        (file,) = (MIGRATIONS / name).glob("*_base.sql")
        base = file.read_text(encoding="utf-8")
    dsn = postgres_server.dsn(SUPERUSER, empty_database_name)
    async with connected_to(dsn, 10.0, OWNER) as connection:
        async with connection.transaction():
            await connection.execute(base)
        version = await read_version(connection, part)
        assert version is not None
        steps = steps_to(part.version, version, migrations, finishes=True)
        await apply_steps(connection, part, steps, version)
        assert schema_differences(await read_facts(connection, part), shipped_facts(part)) == []
        assert await read_version(connection, part) == Version(part.version, None)
