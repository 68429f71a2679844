"""Every public call that takes a caller's connection works on it as its owner has set it up."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import asyncpg
import pytest

from chain_kernel.errors import CheckpointLost, RetryError
from chain_kernel.model import Mark
from local_stack.postgres import SUPERUSER
from matcher_receiver import CheckpointConfig, PostgresCheckpointStore
from outbox import (
    Destination,
    DestinationMissing,
    Message,
    MessageError,
    add,
    add_many,
    change_destination,
    draw_message_ids,
    save_destinations,
)
from outbox.sender.check_back import DecisionRefused, check_decision, decide, forget_decisions
from outbox.sender.due_decisions import Answer
from outbox.sender.transaction import BusinessTransaction, store_messages, watched_transaction
from tests.deadlines import until
from tests.pgbouncer import pgbouncer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
    from pathlib import Path

    from chain_kernel.clients.postgres import Connection
    from local_stack import PostgresServer

HEADERS = {"content-type": "application/x", "note": 'ü "quoted" \\'}
PAYLOAD = b"\x00\xff\\x41'"

SHADOWS = """
CREATE SCHEMA own;
DO $$
DECLARE
    shipped record;
BEGIN
    FOR shipped IN SELECT relname FROM pg_class
                    WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p', 'v')
    LOOP
        EXECUTE format('CREATE TABLE own.%I (another integer)', shipped.relname);
    END LOOP;
    FOR shipped IN SELECT proname, pg_get_function_identity_arguments(oid) AS arguments
                     FROM pg_proc WHERE pronamespace = 'public'::regnamespace
                      AND prorettype <> 'trigger'::regtype
    LOOP
        EXECUTE format('CREATE FUNCTION own.%I(%s) RETURNS text LANGUAGE sql '
                       'AS $f$ SELECT ''another'' $f$', shipped.proname, shipped.arguments);
    END LOOP;
END
$$
"""
"""A business's own objects of all our names."""


class Mapped(asyncpg.Record):  # type: ignore[misc]  # asyncpg is untyped
    """A record that its owner reads by attribute, and whose items are pairs."""

    def __getattr__(self, name: str) -> Any:
        return self[name]

    def __getitem__(self, place: Any) -> Any:
        return ("wrapped", super().__getitem__(place))

    def __iter__(self) -> Any:
        return iter(self.keys())


async def json_codecs(connection: Connection) -> None:
    from json import dumps, loads

    for name in ("json", "jsonb"):
        await connection.set_type_codec(name, encoder=dumps, decoder=loads, schema="pg_catalog")


async def binary_codecs(connection: Connection) -> None:
    """As for a faster JSON: jsonb in its binary format, and uuid, bytea and times as they are."""
    for name in ("jsonb", "uuid", "bytea", "timestamptz"):
        await connection.set_type_codec(
            name, encoder=lambda own: b"\1" + own.raw, decoder=lambda raw: ("raw", raw),
            schema="pg_catalog", format="binary",
        )  # fmt: skip


async def text_codecs(connection: Connection) -> None:
    """Ids, bytes and times as the owner's own text."""
    for name in ("uuid", "bytea", "timestamptz", "interval", "numeric"):
        await connection.set_type_codec(
            name, encoder=lambda own: own.text, decoder=lambda text: ("text", text),
            schema="pg_catalog",
        )  # fmt: skip


async def hstore_codec(connection: Connection) -> None:
    await connection.execute("CREATE EXTENSION hstore")
    await connection.set_builtin_type_codec("hstore", codec_name="pg_contrib.hstore")


def settings(**values: str) -> Callable[[Connection], Awaitable[None]]:
    async def set_them(connection: Connection) -> None:
        for name, value in values.items():
            await connection.execute("SELECT set_config($1, $2, false)", name, value)

    return set_them


async def nothing(connection: Connection) -> None:
    """A connection as the driver gives it."""


OWNERS: dict[str, tuple[Callable[[Connection], Awaitable[None]], dict[str, Any]]] = {
    "plain": (nothing, {}),
    "json codecs": (json_codecs, {}),
    "binary codecs": (binary_codecs, {}),
    "text codecs": (text_codecs, {}),
    "hstore codec": (hstore_codec, {}),
    "record class": (nothing, {"record_class": Mapped}),
    "empty search_path": (settings(search_path=""), {}),
    "another schema first": (settings(search_path="own, public"), {}),
    "timeouts": (settings(statement_timeout="20s", lock_timeout="20s"), {"command_timeout": 20}),
    "repeatable read": (settings(default_transaction_isolation="repeatable read"), {}),
    "serializable": (settings(default_transaction_isolation="serializable"), {}),
    "forms of text": (
        settings(
            datestyle="German, DMY", timezone="Asia/Kathmandu", bytea_output="escape",
            intervalstyle="sql_standard", standard_conforming_strings="off",
        ),
        {},
    ),
    "no prepared statements": (nothing, {"statement_cache_size": 0}),
}  # fmt: skip


async def set_destinations_up(connection: Connection, admin: Connection) -> None:
    given = Destination(name="clearing", topic="clearing", consumers=("a", "b"))
    await save_destinations(connection, [given])
    changed = await change_destination(connection, "clearing", payload_bytes_max=1_000)
    assert (changed.topic, changed.consumers) == ("clearing", ("a", "b"))
    assert await admin.fetchval("SELECT payload_bytes_max FROM outbox_destination") == 1_000


async def store(connection: Connection, admin: Connection) -> None:
    ids = draw_message_ids(3)
    check_at = datetime.now(UTC).replace(microsecond=5) + timedelta(days=3)
    async with connection.transaction():
        with pytest.raises(MessageError, match="1001 bytes"):
            await add(connection, "clearing", b"x" * 1_001, headers=HEADERS)
        with pytest.raises(DestinationMissing, match="nowhere"):
            await add(connection, "nowhere", PAYLOAD, headers=HEADERS)
        first = await add(connection, "clearing", PAYLOAD, key="ключ", headers=HEADERS)
        await add_many(connection, [Message(each, "clearing", PAYLOAD) for each in ids[:2]])
        prepared = Message(ids[2], "clearing", b"")
        await store_messages(connection, [prepared], check_at=check_at)
    async with watched_transaction(connection) as commit:
        claim = uuid4()
        business = BusinessTransaction(connection, claim)
        last = await business.add("clearing", PAYLOAD, headers=HEADERS)
    assert commit.is_certain
    assert [each.message_id for each in business.kept(commit)] == [last]
    rows = await admin.fetch("SELECT * FROM outbox_message ORDER BY message_id")
    assert {row["message_id"] for row in rows} == {first, *ids, last}
    (row,) = [row for row in rows if row["message_id"] == first]
    assert (row["key"], row["payload"]) == ("ключ", PAYLOAD)
    assert await admin.fetchval(
        "SELECT headers = jsonb_build_object('content-type', $2::text, 'note', $3::text) "
        "  FROM outbox_message WHERE message_id = $1",
        first, *HEADERS.values(),
    )  # fmt: skip
    pending = "SELECT next_send_at, claim_token FROM outbox_pending WHERE message_id = $1"
    assert (await admin.fetchrow(pending, ids[2]))["next_send_at"] == check_at
    assert (await admin.fetchrow(pending, last))["claim_token"] == claim


async def decide_and_check(connection: Connection, admin: Connection) -> None:
    done, not_done = draw_message_ids(2)
    async with connection.transaction():
        await decide(connection, done)
    with pytest.raises(DecisionRefused, match="done"):
        async with connection.transaction():
            await decide(connection, done)
    assert await check_decision(connection, done) is Answer.DONE
    assert await check_decision(connection, not_done) is Answer.NOT_DONE
    found = await admin.fetch("SELECT message_id, is_done FROM outbox_decision")
    assert {tuple(row) for row in found} == {(done, True), (not_done, False)}
    assert await forget_decisions(connection, datetime.now(UTC) - timedelta(days=2)) == 0


class SlowAnswer(PostgresCheckpointStore):
    """A checkpoint whose alone-standing save is stored, and not known to be."""

    async def _save_alone(self, first_pid: int, end: Mark, states: Mapping[str, bytes]) -> None:
        await super()._save_alone(first_pid, end, states)
        self._in_doubt.append(end)
        raise RetryError("the answer was lost")


async def save_places(connection: Connection, admin: Connection, dsn: str) -> None:
    await admin.execute("SELECT chain_create(1, $1, 'orders', 0, 1000)", b"\0" * 32)
    places = [Mark(id=n, batch_last_id=n, seal=bytes([n]) * 32, epoch=3) for n in range(1, 5)]
    async with SlowAnswer(CheckpointConfig(database=dsn, chain_id=1, name="m")) as checkpoint:
        async with connection.transaction():
            await checkpoint.save(0, places[0], connection)
        with pytest.raises(RetryError):
            await checkpoint.save(1, places[1])
        async with connection.transaction():  # finds the place that was in doubt
            await checkpoint.save(1, places[2], connection)
        assert await checkpoint.load() == places[2]
        with pytest.raises(CheckpointLost, match="2"):
            async with connection.transaction():
                await checkpoint.save(2, places[3], connection)


@asynccontextmanager
async def owned(dsn: str, name: str) -> AsyncIterator[Connection]:
    """Give the owner's connection, out of a pool of theirs, as most services have it."""
    set_up, options = OWNERS[name]
    async with (
        asyncpg.create_pool(dsn, min_size=1, max_size=1, **options) as pool,
        pool.acquire() as connection,
    ):
        await set_up(connection)
        yield connection


async def call_all(connection: Connection, admin: Connection, dsn: str) -> None:
    await set_destinations_up(connection, admin)
    await store(connection, admin)
    await decide_and_check(connection, admin)
    await save_places(connection, admin, dsn)


@pytest.fixture
def dsn(postgres_server: PostgresServer, database_with: Callable[..., str]) -> str:
    return postgres_server.dsn(SUPERUSER, database_with("chain", "outbox", "decision"))


@pytest.fixture
async def admin(dsn: str) -> AsyncIterator[Connection]:
    connection = await asyncpg.connect(dsn)
    yield connection
    await connection.close()


@pytest.mark.parametrize("owner", OWNERS)
async def test_every_call_works_on_a_connection_as_its_owner_set_it_up(
    owner: str, admin: Connection, dsn: str
) -> None:
    await admin.execute(SHADOWS)
    async with owned(dsn, owner) as connection:
        await call_all(connection, admin, dsn)


async def test_every_call_works_through_a_transaction_pooler(
    admin: Connection, dsn: str, tmp_path: Path
) -> None:
    async with (
        pgbouncer(dsn, tmp_path) as pooled,
        owned(pooled, "no prepared statements") as connection,
    ):
        await call_all(connection, admin, dsn)


async def test_check_with_an_owners_short_timeout_is_unknown(admin: Connection, dsn: str) -> None:
    (message_id,) = draw_message_ids(1)
    async with owned(dsn, "serializable") as connection:
        await connection.execute("SET statement_timeout = '50ms'")
        async with admin.transaction():
            await decide(admin, message_id)
            assert await check_decision(connection, message_id) is Answer.UNKNOWN
        assert await check_decision(connection, message_id) is Answer.DONE


async def test_check_that_waits_answers_done_at_an_owners_isolation(
    admin: Connection, dsn: str
) -> None:
    (message_id,) = draw_message_ids(1)
    async with owned(dsn, "repeatable read") as connection:
        number = connection.get_server_pid()
        async with admin.transaction():
            await decide(admin, message_id)
            checking = asyncio.create_task(check_decision(connection, message_id, 20.0))
            waits = "SELECT cardinality(pg_blocking_pids($1)) > 0"
            await until(lambda: admin.fetchval(waits, number))
        assert await checking is Answer.DONE
