"""Many chains on a server whose table of locks has room for the partitions of a few of them."""

import asyncio
import re
import secrets
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest

from chain_kernel.clients.database_config import PINNED
from chain_kernel.clients.session import ONE_CHAIN_SETTINGS
from chain_kernel.seal import genesis_seal
from chain_kernel.sql import (
    LOGIN_ROLES,
    parse_sql,
    schema_sql,
    with_constant,
)
from local_stack import PostgresServer, PostgresServerConfig
from local_stack.postgres import SUPERUSER
from local_stack.process import free_port
from tests.opened import connected
from tests.pages import ROOT

CHAINS = 100
OURS = 50
TIMES = 10
"""At its sixth call a statement would get a plan for any value: the server tries one then."""


PACKAGES = ("chain_verifier", "chainctl", "gapfill", "matcher_receiver", "sequencer")
PIPELINE = ("commit_batch", "commit_page", "commit_row", "save_mark", "save_reject")
"""What a leader prepares with values; its other statements have the chain as a constant."""

_COMMENT = re.compile(r"^(--.*\n)+")

WORD = f"'{'0' * 32}'"
"""A text that is a number, a UUID and hexadecimal digits, too."""
VALUES = {
    "integer": f"{OURS}", "bigint": "1", "smallint": "1", "boolean": "true", "text": WORD,
    "bytea": r"'\x00'", "double precision": "1", "uuid": WORD,
    "timestamp with time zone": "now()",
}  # fmt: skip
"""A value of each type of a statement; the chain is an integer."""

STRANGE = f"""
    SELECT count(*) FROM pg_locks JOIN pg_class AS held ON held.oid = relation
     WHERE pid = pg_backend_pid() AND relname ~ '^chain_page_[0-9]+'
       AND relname !~ '^chain_page_{OURS}(_|$)'
"""  # noqa: S608 - a number of this file
"""Partitions, and their indexes, of other chains that this transaction has locked."""


@pytest.fixture
def server(server_folder: Path) -> Iterator[PostgresServer]:
    config = PostgresServerConfig(
        directory=server_folder / "few-locks",
        port=free_port(),
        passwords={role: secrets.token_hex(16) for role in (SUPERUSER, *LOGIN_ROLES)},
        shared_buffers_mb=64,
        # The least that PostgreSQL takes: all partitions at once are "out of shared memory".
        max_connections=20,
        settings={
            "max_locks_per_transaction": "10",
            "max_wal_senders": "0",
            "max_worker_processes": "1",
            "autovacuum_max_workers": "1",
            "autovacuum": "off",
        },
    )
    with PostgresServer(config) as server:
        server.prepare_roles()
        server.create_database("many")
        server.execute(f"BEGIN;\n{schema_sql()}\nCOMMIT;\n", database="many")
        yield server


@pytest.mark.nightly
def test_each_statement_called_ten_times_locks_no_partition_of_another_chain(
    server: PostgresServer,
) -> None:
    """Each as its session runs it. With values and the server's own choice of plans some do."""

    async def look() -> tuple[dict[str, int], dict[str, int]]:
        await _create_others(server.dsn(SUPERUSER, "many"), ours=True)
        async with connected(server.dsn(SUPERUSER, "many"), statement_cache_size=0) as connection:
            found = {name: await _strange(connection, *how) for name, how in _statements()}
            careless = {
                name: await _strange(connection, text, {"plan_cache_mode": "auto"})
                for name, text in parse_sql((ROOT / "gapfill/queries.sql").read_text()).items()
            }
        return found, careless

    found, careless = asyncio.run(look())
    assert len(found) > 100
    assert {name: count for name, count in found.items() if count} == {}
    assert any(careless.values())


def _statements() -> Iterator[tuple[str, tuple[str, dict[str, str]]]]:
    """Yield each statement of the product about chains that has a plan, and its settings."""
    paths = [path for package in PACKAGES for path in (ROOT / package).rglob("*.sql")]
    for path in paths:
        if path.name == "scratch.sql" or path.parent.name == "schema":  # SQLite's; of catalogs
            continue
        for name, text in parse_sql(path.read_text()).items():
            if _COMMENT.sub("", text).split()[0] not in (
                "SELECT",
                "INSERT",
                "UPDATE",
                "DELETE",
                "WITH",
            ):
                continue
            is_of_many = "$1::integer[]" in text
            # Another statement of the file goes in, or chains as constants: it is not sent so.
            # Nor does it name a table: a notification.
            if (
                "{statement}" in text
                or (is_of_many and path.parent.name == "chain_verifier")
                or "pg_notify" in text
            ):
                continue
            is_of_one = name not in PIPELINE and not is_of_many
            is_constant = path.parent.name in ("gapfill", "sequencer") and is_of_one
            settings = dict(PINNED)
            if path.parent.name == "sequencer":
                settings["plan_cache_mode"] = "auto"
            elif is_constant:
                settings |= ONE_CHAIN_SETTINGS
            made = with_constant(text, OURS) if is_constant else text
            yield f"{path.relative_to(ROOT)}: {name}", (made, settings)


async def _strange(connection: asyncpg.Connection, text: str, settings: dict[str, str]) -> int:
    """Return how many partitions of other chains are locked when `text` is planned ten times."""
    transaction = connection.transaction()
    await transaction.start()
    try:
        for name, value in settings.items():
            await connection.execute(f"SET LOCAL {name} = '{value}'")
        await connection.execute(f"PREPARE one AS {text}")
        types = await connection.fetchval(
            "SELECT parameter_types::text[] FROM pg_prepared_statements WHERE name = 'one'"
        )
        values = ", ".join(
            "'{}'" if kind.endswith("[]") else VALUES.get(kind, "NULL") for kind in types
        )
        for _ in range(TIMES):
            await connection.execute(f"EXPLAIN EXECUTE one{f'({values})' if values else ''}")
        return int(await connection.fetchval(STRANGE))
    except asyncpg.OutOfMemoryError:
        return CHAINS
    except (asyncpg.UndefinedTableError, asyncpg.DataError):
        # Tables of a part of the schema without chains, or a text that must be some word.
        assert "chain_page" not in text
        return 0
    finally:
        await transaction.rollback()
        await connection.execute("DEALLOCATE ALL")


async def _create_others(dsn: str, *, ours: bool = False) -> None:
    """Create the other chains, or all, each with pages, so that each has a rate for `sizes`."""
    async with connected(dsn) as connection:
        identity = await connection.fetchval("SELECT database_id FROM schema_version")
        for number in range(1, CHAINS + 1):
            if ours or number != OURS:
                await connection.execute(
                    "SELECT chain_create($1, $2, $3, 0, $4)",
                    number, genesis_seal(identity, number), f"many.{number}", 2**23,
                )  # fmt: skip
                await connection.execute("SELECT chain_page_extend($1, $2)", number, 2**24)
