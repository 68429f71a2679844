"""`chainctl outbox`: what people see of messages, and what they may do to them."""

from __future__ import annotations

import asyncio
import json
import signal
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

import outbox
from orderchain.roles import OUTBOX_OPERATOR
from outbox import Message, draw_message_ids

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable
    from uuid import UUID

    from local_stack import KafkaServer, PostgresServer
    from tests.cli.conftest import Call, Refused

PASSWORD = "a-password-of-tests"


@pytest.fixture
def settings(
    call: Call,
    postgres_server: PostgresServer,
    empty_database: str,
    empty_database_name: str,
    kafka_server: KafkaServer,
) -> dict[str, str]:
    """A database with the outbox's tables, as an operator and a relay see it."""
    first = {"CHAINCTL_DATABASE": empty_database, "CHAINCTL_KAFKA": kafka_server.bootstrap}
    assert call("schema", "apply", "--part", "outbox", settings=first).code == 0
    postgres_server.execute(f"ALTER ROLE {OUTBOX_OPERATOR} PASSWORD '{PASSWORD}'")
    port = postgres_server.config.port
    operator = f"postgresql://{OUTBOX_OPERATOR}:{PASSWORD}@127.0.0.1:{port}/{empty_database_name}"
    return {**first, "CHAINCTL_DATABASE": operator}


@pytest.fixture
def clearing(call: Call, settings: dict[str, str]) -> str:
    """A destination."""
    done = call(
        "outbox", "destination", "set", "clearing", "--topic", "t", "--consumer", "a",
        "--tries-max", 2, settings=settings,
    )  # fmt: skip
    assert done.code == 0, done
    return "clearing"


@pytest.fixture
def store(empty_database: str) -> Callable[..., list[UUID]]:
    """Store messages, and bring their deliveries into a status."""

    async def run(count: int, status: int, destination: str, change: str) -> list[UUID]:
        connection = await asyncpg.connect(empty_database)
        ids = draw_message_ids(count)
        try:
            async with connection.transaction():
                messages = [Message(each, destination, b"\x01x", "k", {"a": "b"}) for each in ids]
                await outbox.add_many(connection, messages)
                await connection.execute(
                    "UPDATE outbox_pending SET status = $2::smallint, send_count = 2,"
                    " last_error = 'why', next_send_at = CASE $2::smallint"
                    " WHEN 3 THEN 'infinity'::timestamptz ELSE now() + interval '1 hour' END"
                    " WHERE message_id = ANY($1)",
                    ids, status,
                )  # fmt: skip
                if change:
                    await connection.execute(change)
        finally:
            await connection.close()
        return ids

    return lambda count, status, destination="clearing", change="": asyncio.run(
        run(count, status, destination, change)
    )


def rows(database: str, query: str) -> list[dict[str, Any]]:
    async def run() -> list[dict[str, Any]]:
        connection = await asyncpg.connect(database)
        try:
            return [dict(row) for row in await connection.fetch(query)]
        finally:
            await connection.close()

    return asyncio.run(run())


def test_status_names_a_missing_topic_and_a_consumer_that_never_ran(
    call: Call, settings: dict[str, str], clearing: str, store: Callable[..., list[UUID]]
) -> None:
    change = (
        "UPDATE outbox_pending SET sent_at = now() - interval '6 minutes';"
        "INSERT INTO outbox_trouble (topic, reason)"
        " SELECT topic, 'is not there' FROM outbox_destination"
    )
    store(1, 1, change=change)
    done = call("outbox", "status", "--json", settings=settings)
    assert done.code == 1
    (row,) = json.loads(done.out)
    assert "is not there; nothing was ever heard of consumer" in row["trouble"]
    assert "is not there" in call("outbox", "status", settings=settings).out


def test_status_and_list_tell_where_deliveries_stand(
    call: Call, settings: dict[str, str], clearing: str, store: Callable[..., list[UUID]]
) -> None:
    assert call("outbox", "status", settings=settings).code == 0
    store(3, 1)
    (abnormal,) = store(1, 3)
    done = call("outbox", "status", "--json", settings=settings)
    assert done.code == 1  # something waits for a person
    told = {row["status"]: row for row in json.loads(done.out)}
    assert {name: row["deliveries"] for name, row in told.items()} == {
        "confirmed": 3,
        "abnormal": 1,
    }
    assert told["abnormal"]["oldest_seconds"] >= 0
    assert {row["trouble"] for row in told.values()} == {None}
    listed = call("outbox", "list", "--status", "abnormal", "--json", settings=settings)
    (row,) = json.loads(listed.out)
    assert (row["message_id"], row["tries"], row["next_send"]) == (str(abnormal), 2, None)
    assert row["last_error"] == "why"
    assert len(json.loads(call("outbox", "list", "--json", settings=settings).out)) == 4
    limited = call("outbox", "list", "--limit", 2, "--json", settings=settings)
    assert len(json.loads(limited.out)) == 2
    old = call("outbox", "list", "--older-than", 3600, "--json", settings=settings)
    assert json.loads(old.out) == []
    assert str(abnormal) in call("outbox", "list", settings=settings).out


def test_show_tells_of_the_message_its_deliveries_and_what_people_did(
    call: Call, refused: Refused, settings: dict[str, str], clearing: str,
    store: Callable[..., list[UUID]],
) -> None:  # fmt: skip
    (message_id,) = store(1, 3)
    because = ["--reason", "the consumer was mended", "--actor", "ada"]
    assert call("outbox", "retry", "--id", message_id, *because, settings=settings).code == 0
    told = json.loads(call("outbox", "show", message_id, "--json", settings=settings).out)
    assert (told["key"], told["headers"], told["bytes"]) == ("k", {"a": "b"}, 2)
    assert [each["status"] for each in told["deliveries"]] == ["init"]
    (did,) = told["acts"]
    assert (did["act"], did["actor"], did["reason"]) == ("retry", "ada", "the consumer was mended")
    assert (did["from_status"], did["to_status"]) == ("abnormal", "init")
    assert did["login"] == OUTBOX_OPERATOR
    assert "by ada" in call("outbox", "show", message_id, settings=settings).out
    unknown = "00000000-0000-7000-8000-000000000000"
    assert "a message that is stored" in refused("outbox", "show", unknown, settings=settings)


def test_retry_by_filter_changes_what_is_abnormal_and_a_dry_run_nothing(
    call: Call, settings: dict[str, str], clearing: str, store: Callable[..., list[UUID]],
    empty_database: str,
) -> None:  # fmt: skip
    on_its_way = store(2, 1)
    ids = store(3, 3)
    arguments = ["outbox", "retry", "--destination", clearing, "--reason", "mended", "--json"]
    before = rows(empty_database, "SELECT * FROM outbox_pending ORDER BY 1")
    dry = call(*arguments, "--dry-run", settings=settings)
    assert [row["message_id"] for row in json.loads(dry.out)] == [str(each) for each in ids]
    assert {row["status"] for row in json.loads(dry.out)} == {"abnormal"}
    assert rows(empty_database, "SELECT * FROM outbox_pending ORDER BY 1") == before
    assert rows(empty_database, "SELECT * FROM delivery_act") == []
    done = call(*arguments, settings=settings)
    assert "3 deliveries changed by retry" in done.err
    after = {row["message_id"]: row for row in rows(empty_database, "SELECT * FROM outbox_pending")}
    assert {(after[each]["status"], after[each]["send_count"]) for each in ids} == {(0, 0)}
    assert {after[each]["status"] for each in on_its_way} == {1}
    acts = rows(empty_database, "SELECT * FROM delivery_act ORDER BY message_id")
    assert [row["message_id"] for row in acts] == ids
    assert {row["reason"] for row in acts} == {"mended"}
    assert json.loads(call(*arguments, settings=settings).out) == []  # nothing is abnormal now


def test_retry_of_what_was_never_decided_prepares_it_again(
    call: Call, settings: dict[str, str], clearing: str, store: Callable[..., list[UUID]],
    empty_database: str,
) -> None:  # fmt: skip
    store(1, 3, change="UPDATE outbox_pending SET is_decided = false, check_count = 5")
    done = call("outbox", "retry", "--all", "--reason", "asked", "--json", settings=settings)
    assert [row["status"] for row in json.loads(done.out)] == ["prepared"]
    (row,) = rows(empty_database, "SELECT * FROM outbox_pending")
    assert (row["status"], row["is_decided"], row["check_count"]) == (4, False, 0)


def test_abandon_ends_what_is_abnormal_for_good(
    call: Call, settings: dict[str, str], clearing: str, store: Callable[..., list[UUID]],
    empty_database: str,
) -> None:  # fmt: skip
    (kept,) = store(1, 0)
    ids = store(2, 3)
    arguments = ["outbox", "abandon", "--all", "--reason", "double", "--json"]
    done = call(*arguments, settings=settings)
    assert {row["status"] for row in json.loads(done.out)} == {"abandoned"}
    assert [row["message_id"] for row in rows(empty_database, "SELECT * FROM outbox_pending")] == [
        kept
    ]
    finished = rows(empty_database, "SELECT message_id, status FROM outbox_done ORDER BY 1")
    assert [(row["message_id"], row["status"]) for row in finished] == [(each, 6) for each in ids]
    assert json.loads(call(*arguments, settings=settings).out) == []
    listed = call("outbox", "list", "--status", "abandoned", "--json", settings=settings)
    assert len(json.loads(listed.out)) == 2


def test_resend_makes_due_what_is_on_its_way_and_keeps_its_status(
    call: Call, settings: dict[str, str], clearing: str, store: Callable[..., list[UUID]],
    empty_database: str,
) -> None:  # fmt: skip
    first, second = store(2, 1, change='UPDATE outbox_pending SET "offset" = 7')
    store(1, 3)
    done = call("outbox", "resend", "--id", first, "--reason", "lost", "--json", settings=settings)
    assert [row["status"] for row in json.loads(done.out)] == ["confirmed"]
    due = 'SELECT message_id, send_count, "offset" FROM outbox_pending WHERE next_send_at <= now()'
    assert rows(empty_database, due) == [{"message_id": first, "send_count": 0, "offset": None}]
    (act,) = rows(empty_database, "SELECT from_status, to_status FROM delivery_act")
    assert (act["from_status"], act["to_status"]) == (1, 1)
    assert second != first


@pytest.mark.parametrize("act", ["retry", "abandon", "resend"])
def test_act_without_reason_actor_or_filter_is_refused(
    refused: Refused, settings: dict[str, str], clearing: str, act: str
) -> None:
    assert "--reason" in refused("outbox", act, "--all", settings=settings)
    assert "filter" in refused("outbox", act, "--reason", "x", settings=settings)
    assert "--reason" in refused("outbox", act, "--all", "--reason", " ", settings=settings)
    blank = ["--all", "--reason", "x", "--actor", "\n"]
    assert "--actor" in refused("outbox", act, *blank, settings=settings)
    assert "UUID" in refused("outbox", act, "--id", "x", "--reason", "x", settings=settings)


def test_operator_cannot_change_what_was_told_of_acts(
    settings: dict[str, str], clearing: str
) -> None:
    async def run(change: str) -> None:
        connection = await asyncpg.connect(settings["CHAINCTL_DATABASE"])
        try:
            await connection.execute(change)
        finally:
            await connection.close()

    for change in (
        "DELETE FROM delivery_act",
        "UPDATE delivery_act SET reason = 'x'",
        "UPDATE outbox_message SET payload = ''",
        "DELETE FROM outbox_done",
        "UPDATE outbox_pending SET destination = 'x'",
        "INSERT INTO delivery_act (message_id, consumer, act, actor, reason, from_status,"
        " to_status, login) VALUES (gen_random_uuid(), '', 'x', 'x', 'x', 0, 0, 'x')",
    ):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            asyncio.run(run(change))


def test_destination_is_shown_as_it_was_set_up_and_bad_ones_are_refused(
    call: Call, refused: Refused, settings: dict[str, str], clearing: str
) -> None:
    (row,) = json.loads(call("outbox", "destination", "list", "--json", settings=settings).out)
    assert (row["name"], row["topic"], row["confirm"]) == ("clearing", "t", "required")
    assert (row["consumers"], row["confirm_topic"], row["tries_max"]) == (["a"], "t.confirms", 2)
    bad = ["outbox", "destination", "set", "x", "--topic"]
    assert "topic" in refused(*bad, "a b", settings=settings)
    assert "resend_seconds_max" in refused(*bad, "t", "--resend-seconds-max", 1, settings=settings)
    assert "consumers" in refused(*bad, "t", "--consumer", "", settings=settings)


def test_commands_without_the_outboxs_tables_are_refused(
    refused: Refused, empty_database: str
) -> None:
    settings = {"CHAINCTL_DATABASE": empty_database}
    for arguments in (["status"], ["list"], ["retry", "--all", "--reason", "x"]):
        assert "--part outbox" in refused("outbox", *arguments, settings=settings)


def test_relay_sends_what_is_stored_until_it_is_told_to_end(
    call: Call,
    start: Callable[..., subprocess.Popen[str]],
    settings: dict[str, str],
    empty_database: str,
    empty_database_name: str,
    make_topic: Callable[..., None],
) -> None:
    topic = f"notes.{empty_database_name}"
    make_topic(topic)
    done = call("outbox", "destination", "set", "notes", "--topic", topic, settings=settings)
    assert done.code == 0, done

    async def stored_and_sent() -> None:
        connection = await asyncpg.connect(empty_database)
        try:
            async with connection.transaction():
                await outbox.add(connection, "notes", b"x")
            async with asyncio.timeout(60):
                done = "SELECT count(*) FROM outbox_done"
                while not await connection.fetchval(done):  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
        finally:
            await connection.close()

    owner = {**settings, "CHAINCTL_DATABASE": empty_database}
    process = start("outbox", "relay", "--group", topic, "--json", settings=owner)
    asyncio.run(stored_and_sent())
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 143, err
    assert json.loads(out)["sent"] == 1
    assert err.startswith("chainctl: the relay runs\n")
