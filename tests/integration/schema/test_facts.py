"""What `chainctl schema check` compares: the shipped facts, and every kind of difference."""

import secrets
from collections.abc import Iterator

import pytest

from chain_kernel.sql import NUMBERED, OWNER
from chainctl.database import connected_to
from chainctl.schema.parts import (
    PARTS,
    Fact,
    SchemaPart,
    encode_facts,
    read_facts,
    schema_differences,
    shipped_facts,
)
from local_stack import PostgresServer
from local_stack.postgres import SUPERUSER
from outbox import roles as outbox


@pytest.fixture(scope="module", params=PARTS)
def part(request: pytest.FixtureRequest) -> SchemaPart:
    return PARTS[request.param]


@pytest.fixture(scope="module")
def part_database(postgres_server: PostgresServer, part: SchemaPart) -> Iterator[str]:
    """The name of a database with one part, as it was shipped."""
    yield from made_with(postgres_server, part)


@pytest.fixture(scope="module")
def changed_database(postgres_server: PostgresServer) -> Iterator[str]:
    """The name of a database with the chain's tables; each test changes it and rolls back."""
    yield from made_with(postgres_server, PARTS["chain"])


def made_with(server: PostgresServer, part: SchemaPart) -> Iterator[str]:
    name = f"test_{secrets.token_hex(8)}"
    server.create_database(name)
    server.execute(f"BEGIN;\n{part.text()}\nCOMMIT;\n", database=name)
    yield name
    server.drop_database(name)


async def read(server: PostgresServer, database: str, part: SchemaPart) -> list[Fact]:
    async with connected_to(server.dsn(SUPERUSER, database), 10.0, OWNER) as connection:
        return await read_facts(connection, part)


def test_numbers_from_sequences_are_those_of_the_tables_that_errors_name() -> None:
    facts = (fact for part in PARTS.values() for fact in shipped_facts(part))
    found = {fact.object: fact.aspect for fact in facts if "AS IDENTITY" in fact.value}
    assert found == {
        f"table {table}": f"column {name}"
        for table, name in {**NUMBERED, **outbox.NUMBERED}.items()
    }


async def test_every_table_has_a_key(postgres_server: PostgresServer, part_database: str) -> None:
    """As by CREATE PUBLICATION ... FOR ALL TABLES, which refuses both for a table without a key."""
    lacking = postgres_server.execute(
        "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace "
        "AND relkind IN ('r', 'p') AND NOT EXISTS (SELECT FROM pg_index "
        "WHERE indrelid = pg_class.oid AND (indisprimary OR indisreplident))",
        database=part_database,
    )
    assert lacking == ""


async def test_shipped_facts_are_those_of_the_sql(
    postgres_server: PostgresServer, part: SchemaPart, part_database: str
) -> None:
    found = await read(postgres_server, part_database, part)
    shipped = shipped_facts(part)
    assert schema_differences(found, shipped) == [], "python tools/schema_facts.py"
    assert encode_facts(found) == encode_facts(shipped)


async def test_login_makes_no_difference(postgres_server: PostgresServer, part: SchemaPart) -> None:
    """Neither those with which the SQL was applied, nor those of who checks it."""
    harmful = {
        "bytea_output": "escape", "standard_conforming_strings": "off", "DateStyle": "SQL, DMY",
        "IntervalStyle": "iso_8601", "TimeZone": "Asia/Kolkata", "extra_float_digits": "-15",
        "quote_all_identifiers": "on", "lc_monetary": "C", "backslash_quote": "on",
        "array_nulls": "off", "transform_null_equals": "on",
    }  # fmt: skip
    name = f"test_{secrets.token_hex(8)}"
    postgres_server.create_database(name)
    try:
        for setting, value in harmful.items():
            to = value if "," in value else f"'{value}'"
            postgres_server.execute(f"ALTER DATABASE {name} SET {setting} = {to}")
        postgres_server.execute(f"BEGIN;\n{part.text()}\nCOMMIT;\n", database=name)
        postgres_server.execute(f"ALTER DATABASE {name} SET search_path = pg_catalog")
        found = await read(postgres_server, name, part)
    finally:
        postgres_server.drop_database(name)
    named = [
        one
        for one in schema_differences(found, shipped_facts(part))
        if "session setting" not in one
    ]
    assert named == []


async def test_partitions_made_at_run_time_are_no_difference(
    postgres_server: PostgresServer, part: SchemaPart, part_database: str
) -> None:
    make = {
        "chain": "SELECT chain_create(1, decode(repeat('00', 32), 'hex'), 't.1', 0, 100)",
        "outbox": "SELECT outbox_extend(now() + interval '3 days', 6, 2)",
        "inbox": "SELECT inbox_extend(now())",
    }
    if part.name in make:
        postgres_server.execute(make[part.name], database=part_database)
    found = await read(postgres_server, part_database, part)
    assert schema_differences(found, shipped_facts(part)) == []


CHANGES = {
    "ALTER TABLE chain_head ALTER COLUMN topic_partition TYPE bigint": [
        "table chain_head: column topic_partition is bigint NOT NULL DEFAULT 0,"
        " shipped as integer NOT NULL DEFAULT 0"
    ],
    "ALTER TABLE chain_skip ADD COLUMN note text": [
        "table chain_skip: column note is text, shipped without"
    ],
    "ALTER TABLE chain_page ALTER COLUMN payloads SET STORAGE EXTENDED": [
        "table chain_page: column payloads is bytea[] NOT NULL,"
        " shipped as bytea[] NOT NULL STORAGE EXTERNAL"
    ],
    "ALTER TABLE chain_skip SET UNLOGGED": [
        "table chain_skip: kind is unlogged table, shipped as table"
    ],
    "ALTER TABLE chain_head SET (autovacuum_vacuum_threshold = 7)": [],
    "ALTER TABLE chain_skip DISABLE TRIGGER ALL": [
        "table chain_skip: check of foreign keys is disabled, shipped without"
    ],
    "CREATE RULE forget AS ON INSERT TO chain_skip DO INSTEAD NOTHING": [
        "table chain_skip: rule forget is CREATE RULE forget AS ON INSERT TO public.chain_skip "
        "DO INSTEAD NOTHING;, shipped without"
    ],
    "ALTER TABLE chain_term DISABLE ROW LEVEL SECURITY": [
        "table chain_term: row security is missing, shipped as enabled"
    ],
    "DROP POLICY own_update ON receiver_gap;"
    "CREATE POLICY own_update ON receiver_gap FOR UPDATE TO receiver_writer USING (true)": [
        "table receiver_gap: policy own_update is PERMISSIVE UPDATE TO receiver_writer USING true,"
        " shipped as PERMISSIVE UPDATE TO receiver_writer USING (login = SESSION_USER)"
    ],
    "CREATE OR REPLACE FUNCTION chain_refuse() RETURNS trigger LANGUAGE plpgsql"
    " SET search_path = pg_catalog, public, pg_temp AS 'BEGIN RETURN NULL; END'": [
        "function chain_refuse(): body is not the shipped one"
    ],
    "CREATE FUNCTION chain_create(integer) RETURNS integer LANGUAGE sql AS 'SELECT 1'": [
        "function chain_create(integer): not shipped"
    ],
    "ALTER TABLE chain_skip OWNER TO postgres": [
        "table chain_skip: owner is postgres, shipped as orderchain_owner"
    ],
    "GRANT UPDATE ON chain_lease TO gap_reader": [
        "table chain_lease: role gap_reader may UPDATE, shipped: may not"
    ],
    "REVOKE INSERT ON chain_page FROM sequencer_writer": [
        "table chain_page: role sequencer_writer may not INSERT, shipped: may"
    ],
    "GRANT SELECT (key_salt) ON chain_head TO auditor": [
        "table chain_head: role auditor may SELECT column key_salt, shipped: may not"
    ],
    "GRANT EXECUTE ON FUNCTION chain_create TO PUBLIC": [
        "function chain_create(integer, bytea, text, integer, bigint):"
        " role PUBLIC may EXECUTE, shipped: may not"
    ],
    "GRANT CREATE ON SCHEMA public TO auditor": [
        "schema public: role auditor may CREATE, shipped: may not"
    ],
    "SELECT chain_create(7, decode(repeat('00', 32), 'hex'), 't.7', 0, 100);"
    "GRANT DELETE ON chain_page_7_0 TO sequencer_writer;"
    "ALTER TABLE chain_page_7_1 OWNER TO postgres": [
        "table chain_page: partition chain_page_7_1 owner is postgres, shipped without",
        "table chain_page: role sequencer_writer may DELETE on partition chain_page_7_0,"
        " shipped: may not",
    ],
    "ALTER ROLE auditor BYPASSRLS": ["role auditor: rights is BYPASSRLS, shipped as none"],
    "GRANT orderchain_owner TO receiver_writer": [
        "role receiver_writer: rights is member of orderchain_owner, shipped as none"
    ],
    "CREATE ROLE reports; GRANT SELECT ON chain_event TO reports": [],
    "CREATE TABLE of_somebody_else (n integer); GRANT ALL ON of_somebody_else TO PUBLIC": [],
}
"""What somebody does to a database, and what the check says of it."""


@pytest.mark.parametrize("change", CHANGES)
async def test_every_change_is_named_in_a_line(
    postgres_server: PostgresServer, changed_database: str, change: str
) -> None:
    chain = PARTS["chain"]
    dsn = postgres_server.dsn(SUPERUSER, changed_database)
    async with connected_to(dsn, 10.0, OWNER) as connection:
        changing = connection.transaction()
        await changing.start()
        await connection.execute(change)
        found = await read_facts(connection, chain)
        await changing.rollback()
    assert schema_differences(found, shipped_facts(chain), ["reports"]) == CHANGES[change]
