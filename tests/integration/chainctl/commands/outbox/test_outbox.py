"""`chainctl outbox`: what people see of messages, and what they may do to them."""

import asyncio
import json
import signal
import subprocess
from collections.abc import Callable
from typing import Any
from unittest.mock import AsyncMock
from uuid import UUID

import pytest

import outbox
from local_stack import KafkaServer, PostgresServer
from local_stack.postgres import SUPERUSER
from outbox import Message, draw_message_ids
from outbox.record_mac import destination_key
from outbox.roles import OUTBOX_OPERATOR
from tests.deadlines import deadline, until
from tests.integration.chainctl.conftest import Call, Ctl, Refused
from tests.opened import connected

PASSWORD = "a-password-of-tests"


@pytest.fixture
def database_name(database_with: Callable[..., str]) -> str:
    """A database with the tables of the outbox."""
    return database_with("outbox")


@pytest.fixture
def database(postgres_server: PostgresServer, database_name: str) -> str:
    return postgres_server.dsn(SUPERUSER, database_name)


@pytest.fixture
def settings(
    postgres_server: PostgresServer, database: str, database_name: str, kafka_server: KafkaServer,
) -> dict[str, str]:  # fmt: skip
    """A database with the outbox's tables, as an operator and a relay see it."""
    first = {"CHAINCTL_DATABASE": database, "CHAINCTL_KAFKA": kafka_server.bootstrap}
    postgres_server.execute(f"ALTER ROLE {OUTBOX_OPERATOR} PASSWORD '{PASSWORD}'")
    port = postgres_server.config.port
    operator = f"postgresql://{OUTBOX_OPERATOR}:{PASSWORD}@127.0.0.1:{port}/{database_name}"
    return {**first, "CHAINCTL_DATABASE": operator}


@pytest.fixture
def clearing(ctl: Ctl) -> str:
    """A destination."""
    ctl.done(
        "outbox", "destination", "set", "clearing", "--topic", "t", "--consumer", "a",
        "--tries-max", 2,
    )  # fmt: skip
    return "clearing"


@pytest.fixture
def store(database: str) -> Callable[..., list[UUID]]:
    """Store messages, and bring their deliveries into a status."""

    async def run(count: int, status: int, destination: str, change: str) -> list[UUID]:
        ids = draw_message_ids(count)
        async with connected(database) as connection, connection.transaction():
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
        return ids

    return lambda count, status, destination="clearing", change="": asyncio.run(
        run(count, status, destination, change)
    )


def rows(database: str, query: str) -> list[dict[str, Any]]:
    async def run() -> list[dict[str, Any]]:
        async with connected(database) as connection:
            return [dict(row) for row in await connection.fetch(query)]

    return asyncio.run(run())


def test_status_and_list_report_where_deliveries_stand(
    ctl: Ctl, clearing: str, store: Callable[..., list[UUID]]
) -> None:
    ctl.done("outbox", "status")
    store(3, 1)
    (abnormal,) = store(1, 3)
    done = ctl("outbox", "status", "--json")
    assert done.code == 1  # something waits for a person
    noted = {row["status"]: row for row in json.loads(done.out)}
    assert {name: row["deliveries"] for name, row in noted.items()} == {
        "confirmed": 3,
        "abnormal": 1,
    }
    assert noted["abnormal"]["oldest_seconds"] >= 0
    assert {row["trouble"] for row in noted.values()} == {None}
    listed = ctl("outbox", "list", "--status", "abnormal", "--json")
    (row,) = json.loads(listed.out)
    assert (row["message_id"], row["tries"], row["next_send"]) == (str(abnormal), 2, None)
    assert row["last_error"] == "why"
    assert len(ctl.json("outbox", "list")) == 4
    limited = ctl("outbox", "list", "--limit", 2, "--json")
    assert len(json.loads(limited.out)) == 2
    old = ctl("outbox", "list", "--older-than", 3600, "--json")
    assert json.loads(old.out) == []
    assert str(abnormal) in ctl("outbox", "list").out


def test_status_names_what_is_overdue_and_a_relay_that_does_not_run(
    ctl: Ctl, database: str, clearing: str, store: Callable[..., list[UUID]]
) -> None:
    store(2, 0, change="UPDATE outbox_pending SET next_send_at = now() - interval '2 minutes'")
    store(1, 0)
    rows(database, "UPDATE outbox_space SET measured_at = now()")  # as a relay does each minute
    done = ctl("outbox", "status", "--json")
    assert done.code == 1
    (row,) = json.loads(done.out)
    assert (row["deliveries"], row["overdue"]) == (3, 2)
    assert row["overdue_seconds"] >= 120
    ctl.done("outbox", "status", "--overdue", "1h")
    rows(database, "UPDATE outbox_space SET measured_at = now() - interval '6 minutes'")
    found = json.loads(ctl("outbox", "status", "--json").out)
    assert found[0] == {**row, **{
        name: found[0][name] for name in ("overdue_seconds", "oldest_seconds")
    }}  # fmt: skip
    assert found[1]["destination"] is None
    assert found[1]["trouble"].startswith("no relay was seen for 36")
    # Without anything that is overdue, a relay may well be away.
    rows(database, "UPDATE outbox_pending SET next_send_at = now()")
    ctl.done("outbox", "status")


def test_status_names_a_consumer_that_lets_messages_wait_and_says_nothing(
    ctl: Ctl, database: str, clearing: str, store: Callable[..., list[UUID]]
) -> None:
    sent = """UPDATE outbox_pending
        SET topic = 't', "partition" = 0, "offset" = 7, sent_at = now() - interval '4 minutes'"""
    store(2, 1, change=sent)
    ctl.done("outbox", "status")
    rows(database, sent.replace("4", "6"))
    never = "nothing was ever heard of consumer a"
    done = ctl("outbox", "status", "--json")
    assert (done.code, json.loads(done.out)[0]["silent"]) == (1, never)
    assert never in ctl("outbox", "status").out
    # Its progress was reported, the last time long ago.
    report = "INSERT INTO outbox_progress VALUES ('a', 't', 0, 7, '2026-01-02 03:04:05Z')"
    rows(database, report)
    (row,) = json.loads(ctl("outbox", "status", "--json").out)
    assert row["silent"] == "consumer a is silent since 2026-01-02T03:04:05Z"
    rows(database, 'UPDATE outbox_progress SET "offset" = 8')  # read: parked for a retry
    ctl.done("outbox", "status")
    rows(database, "DELETE FROM outbox_progress")
    assert ctl("outbox", "status").code == 1
    rows(database, "INSERT INTO outbox_progress VALUES ('a', 't', -1, 0)")  # by a confirm alone
    ctl.done("outbox", "status")


def test_show_reports_the_message_its_deliveries_and_what_people_did(
    ctl: Ctl, clearing: str, store: Callable[..., list[UUID]]
) -> None:
    (message_id,) = store(1, 3)
    because = ["--reason", "the consumer was fixed", "--actor", "ada"]
    ctl.done("outbox", "retry", "--id", message_id, *because)
    noted = ctl.json("outbox", "show", message_id)
    assert (noted["key"], noted["headers"], noted["bytes"]) == ("k", {"a": "b"}, 2)
    assert [each["status"] for each in noted["deliveries"]] == ["init"]
    (did,) = noted["acts"]
    assert (did["act"], did["actor"], did["reason"]) == ("retry", "ada", "the consumer was fixed")
    (listed,) = ctl.json("outbox", "acts", "--since", "1h")
    assert {**did, "message_id": str(message_id)}.items() <= listed.items()
    assert "the consumer was fixed" in ctl("outbox", "acts").out
    assert (did["from_status"], did["to_status"]) == ("abnormal", "init")
    assert did["login"] == OUTBOX_OPERATOR
    assert "by ada" in ctl("outbox", "show", message_id).out
    unknown = "00000000-0000-7000-8000-000000000000"
    assert "a message that is stored" in ctl.refused("outbox", "show", unknown)


def test_retry_by_filter_changes_what_is_abnormal_and_a_dry_run_nothing(
    ctl: Ctl, clearing: str, store: Callable[..., list[UUID]], database: str
) -> None:
    on_its_way = store(2, 1)
    ids = store(3, 3)
    arguments = ["outbox", "retry", "--destination", clearing, "--reason", "fixed", "--json"]
    before = rows(database, "SELECT * FROM outbox_pending ORDER BY 1")
    dry = ctl(*arguments, "--dry-run")
    assert [row["message_id"] for row in json.loads(dry.out)] == [str(each) for each in ids]
    assert {row["status"] for row in json.loads(dry.out)} == {"abnormal"}
    assert rows(database, "SELECT * FROM outbox_pending ORDER BY 1") == before
    assert rows(database, "SELECT * FROM delivery_act") == []
    done = ctl(*arguments)
    assert "3 deliveries changed by retry" in done.err
    after = {row["message_id"]: row for row in rows(database, "SELECT * FROM outbox_pending")}
    assert {(after[each]["status"], after[each]["send_count"]) for each in ids} == {(0, 0)}
    assert {after[each]["status"] for each in on_its_way} == {1}
    acts = rows(database, "SELECT * FROM delivery_act ORDER BY message_id")
    assert [row["message_id"] for row in acts] == ids
    assert {row["reason"] for row in acts} == {"fixed"}
    assert json.loads(ctl(*arguments).out) == []  # nothing is abnormal now


def test_abandon_ends_what_is_abnormal_for_good(
    ctl: Ctl, clearing: str, store: Callable[..., list[UUID]], database: str
) -> None:
    (kept,) = store(1, 0)
    ids = store(2, 3)
    arguments = ["outbox", "abandon", "--all", "--reason", "double", "--json"]
    done = ctl(*arguments)
    assert {row["status"] for row in json.loads(done.out)} == {"abandoned"}
    assert [row["message_id"] for row in rows(database, "SELECT * FROM outbox_pending")] == [kept]
    finished = rows(database, "SELECT message_id, status FROM outbox_done ORDER BY 1")
    assert [(row["message_id"], row["status"]) for row in finished] == [(each, 6) for each in ids]
    again = ctl(*arguments)
    assert (again.code, json.loads(again.out)) == (1, [])
    assert "abandon changes deliveries that are abnormal" in again.err
    one = [*arguments[:2], "--id", ids[0], "--reason", "double"]
    assert "none of those is chosen" in ctl(*one).err
    listed = ctl("outbox", "list", "--status", "abandoned", "--json")
    assert len(json.loads(listed.out)) == 2


def test_resend_makes_due_what_is_on_its_way_and_keeps_its_status(
    ctl: Ctl, clearing: str, store: Callable[..., list[UUID]], database: str
) -> None:
    first, second = store(2, 1, change='UPDATE outbox_pending SET "offset" = 7')
    store(1, 3)
    done = ctl("outbox", "resend", "--id", first, "--reason", "lost", "--json")
    assert [row["status"] for row in json.loads(done.out)] == ["confirmed"]
    due = 'SELECT message_id, send_count, "offset" FROM outbox_pending WHERE next_send_at <= now()'
    assert rows(database, due) == [{"message_id": first, "send_count": 0, "offset": None}]
    (act,) = rows(database, "SELECT from_status, to_status FROM delivery_act")
    assert (act["from_status"], act["to_status"]) == (1, 1)
    assert second != first


@pytest.mark.parametrize("act", ["retry", "abandon", "resend"])
def test_act_without_reason_actor_or_filter_is_refused(ctl: Ctl, clearing: str, act: str) -> None:
    assert "--reason" in ctl.refused("outbox", act, "--all")
    assert "filter" in ctl.refused("outbox", act, "--reason", "x")
    assert "--reason" in ctl.refused("outbox", act, "--all", "--reason", " ")
    blank = ["--all", "--reason", "x", "--actor", "\n"]
    assert "--actor" in ctl.refused("outbox", act, *blank)
    assert "UUID" in ctl.refused("outbox", act, "--id", "x", "--reason", "x")


def test_destination_is_shown_as_it_was_set_up_and_bad_ones_are_refused(
    ctl: Ctl, clearing: str
) -> None:
    (row,) = ctl.json("outbox", "destination", "list")
    assert (row["name"], row["topic"], row["confirm"]) == ("clearing", "t", "required")
    assert (row["consumers"], row["confirm_topic"], row["tries_max"]) == (["a"], "t.confirms", 2)
    bad = ["outbox", "destination", "set", "x", "--topic"]
    assert "topic" in ctl.refused(*bad, "a b")
    assert "resend_seconds_max" in ctl.refused(*bad, "t", "--resend-seconds-max", 1)
    assert "consumers" in ctl.refused(*bad, "t", "--consumer", "")


def test_key_of_a_destination_is_printed_and_refused_to_an_operator(
    call: Call, ctl: Ctl, settings: dict[str, str], database: str
) -> None:
    (secret,) = rows(database, "SELECT confirm_key FROM outbox_secret")
    owner = {**settings, "CHAINCTL_DATABASE": database}
    done = call("outbox", "destination", "key", "clearing", settings=owner)
    assert done.out == destination_key(secret["confirm_key"], "clearing").hex() + "\n"
    assert "outbox_relay" in ctl.refused("outbox", "destination", "key", "clearing")


def shown(ctl: Ctl, name: str) -> dict[str, Any]:
    found = ctl.json("outbox", "destination", "list")
    heard: dict[str, Any] = {row["name"]: row for row in found}[name]
    return heard


EVERY_FIELD = {
    "topic": "t2", "confirm": "required", "confirm_topic": "c2", "tries_max": 7,
    "resend_seconds": 5.0, "resend_seconds_max": 50.0, "queue_seconds_max": 500.0,
    "payload_bytes_max": 1_000,
}  # fmt: skip


def test_destination_set_changes_what_is_given_and_nothing_else(ctl: Ctl) -> None:
    """One field at a time, so that each is left alone by all the others."""
    wanted = {"name": "d", "consumers": ["a", "b"], "resend_filter": False, **EVERY_FIELD}
    given = [f"--{name.replace('_', '-')}={value}" for name, value in EVERY_FIELD.items()]
    both = ["--consumer", "a", "--consumer", "b", "--no-resend-filter"]
    for arguments in (["--topic", "t", *both], *([each] for each in given)):
        ctl.done("outbox", "destination", "set", "d", *arguments)
    assert shown(ctl, "d") == wanted
    set_so = ctl("outbox", "destination", "set", "d", "--resend-filter", "--json")
    assert json.loads(set_so.out) == {**wanted, "resend_filter": True}


def test_destination_whose_consumers_go_asks_for_no_confirm_and_the_reverse(
    ctl: Ctl, clearing: str
) -> None:
    change = ["outbox", "destination", "set", clearing]
    ctl.done(*change, "--confirm", "none")
    found = shown(ctl, clearing)
    assert (found["confirm"], found["consumers"], found["confirm_topic"]) == ("none", [], "")
    assert (found["topic"], found["tries_max"]) == ("t", 2)
    ctl.done(*change, "--consumer", "b")
    found = shown(ctl, clearing)
    assert (found["confirm"], found["consumers"], found["confirm_topic"]) == (
        "required", ["b"], "t.confirms",
    )  # fmt: skip
    assert "consumers" in ctl.refused(*change, "--confirm", "none", "--consumer", "b")
    assert "topic" in ctl.refused("outbox", "destination", "set", "new")
    alone = [*change, "--partitions", 3]
    assert "--create-topics" in ctl.refused(*alone)
    assert shown(ctl, clearing) == found


def test_destination_is_removed_once_no_delivery_is_unfinished(
    ctl: Ctl, clearing: str, store: Callable[..., list[UUID]]
) -> None:
    store(2, 0)
    (abnormal,) = store(1, 3)
    remove = ["outbox", "destination", "remove"]
    assert "unfinished deliveries (there are 3:" in ctl.refused(*remove, clearing)
    because = ["--id", abnormal, "--reason", "x"]
    ctl.done("outbox", "abandon", *because)
    assert "there are 2:" in ctl.refused(*remove, clearing)
    ctl("outbox", "destination", "set", "idle", "--topic", "t")
    done = ctl(*remove, "idle")
    assert (done.code, done.err) == (0, "chainctl: destination idle is removed\n")
    listed = ctl.json("outbox", "destination", "list")
    assert [each["name"] for each in listed] == [clearing]
    assert "one that was set up" in ctl.refused(*remove, "idle")
    with pytest.raises(outbox.DestinationMissing):
        store(1, 0, "idle")


def test_mistaken_destination_is_ended_with_what_was_sent_to_nobody(
    ctl: Ctl, clearing: str, store: Callable[..., list[UUID]], database: str
) -> None:
    on_its_way = sorted(store(2, 1) + store(1, 0))
    (prepared,) = store(1, 0)
    asked_often = (
        "UPDATE outbox_pending SET status = 4, is_decided = false, asked = 'shop', "
        "check_count = 16, next_send_at = now() WHERE message_id = '%s'"
    )
    rows(database, asked_often % prepared)
    end = ["outbox", "abandon", "--destination", clearing, "--reason", "a slip"]
    assert ctl(*end).code == 1, "what is on its way is ended by name only"
    named = [*end, "--status", "init", "--status", "confirmed", "--status", "prepared", "--json"]
    dry = ctl(*named, "--dry-run")
    assert [row["message_id"] for row in json.loads(dry.out)] == list(map(str, on_its_way))
    done = ctl(*named)
    assert {row["status"] for row in json.loads(done.out)} == {"abandoned"}
    acts = rows(database, "SELECT from_status, to_status FROM delivery_act ORDER BY 1")
    assert [tuple(each.values()) for each in acts] == [(0, 6), (1, 6), (1, 6)]
    (left,) = rows(database, "SELECT message_id FROM outbox_pending")
    assert left["message_id"] == prepared, "its sender may still decide"
    assert "unfinished" in ctl.refused("outbox", "destination", "remove", clearing)

    async def check() -> None:
        config = outbox.RelayConfig(database=database, kafka="unused:1", name="checks")
        check_back = outbox.CheckBack(config, AsyncMock())
        assert await check_back.check_once() == 1
        await check_back.close()

    asyncio.run(check())  # it was asked for as often as allowed, and is abnormal now
    ctl.done(*end)
    ctl.done("outbox", "destination", "remove", clearing)


def test_keep_says_what_the_outbox_takes_and_refuses_or_lets_messages_be_added(
    ctl: Ctl, clearing: str, store: Callable[..., list[UUID]]
) -> None:
    store(1, 1)
    full = ctl("outbox", "keep", "--outbox-bytes-max", 1, "--json")
    noted = json.loads(full.out)
    assert (full.code, noted["is_full"], noted["bytes_max"]) == (1, True, 1)
    assert noted["bytes"] > 1
    with pytest.raises(outbox.OutboxFull):
        store(1, 1)
    # Without the flag the bound is the one that was set.
    assert ctl("outbox", "keep").code == 1
    again = ctl("outbox", "keep", "--outbox-bytes-max", 0)
    assert (again.code, "is_full: no" in again.out) == (0, True)
    store(1, 1)


def test_commands_without_the_outboxs_tables_are_refused(
    refused: Refused, empty_database: str
) -> None:
    settings = {"CHAINCTL_DATABASE": empty_database}
    for arguments in (["status"], ["list"], ["retry", "--all", "--reason", "x"]):
        assert "--part outbox" in refused("outbox", *arguments, settings=settings)


def test_relay_sends_what_is_stored_until_it_is_asked_to_end(
    ctl: Ctl, start: Callable[..., subprocess.Popen[str]], settings: dict[str, str], database: str,
    database_name: str, make_topic: Callable[..., None],
) -> None:  # fmt: skip
    topic = f"notes.{database_name}"
    make_topic(topic)
    done = ctl("outbox", "destination", "set", "notes", "--topic", topic)
    assert done.code == 0, done

    async def stored_and_sent() -> None:
        async with connected(database) as connection:
            async with connection.transaction():
                await outbox.add(connection, "notes", b"x")
            async with deadline():
                done = "SELECT count(*) FROM outbox_done"
                await until(lambda: connection.fetchval(done))

    owner = {**settings, "CHAINCTL_DATABASE": database}
    process = start("outbox", "relay", "--group", topic, "--json", settings=owner)
    asyncio.run(stored_and_sent())
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate()
    assert process.returncode == 143, err
    assert json.loads(out)["sent"] == 1
    assert err.startswith("chainctl: the relay runs\n")
