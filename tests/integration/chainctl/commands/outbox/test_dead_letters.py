"""`chainctl outbox dead`: what a consumer gave up, and what people do about it."""

import asyncio
import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from chain_kernel.errors import TopicError
from local_stack import KafkaServer, PostgresServer
from local_stack.postgres import SUPERUSER
from outbox import Consumer, ConsumerConfig
from outbox.acts import DeadLetters
from outbox.consumer.delivery import Delivery
from outbox.consumer.inbox import REFUSED, TRIES_USED_UP, Inbox
from outbox.consumer.record_source import go_past
from outbox.message import draw_message_ids
from outbox.roles import OUTBOX_OPERATOR
from tests.builders.topics import damage_batch, make_topics
from tests.command_call import Done
from tests.deadlines import deadline
from tests.integration.chainctl.conftest import Call, Ctl, Refused
from tests.opened import connected

PASSWORD = "a-password-of-tests"
WHY = ["--reason", "fixed", "--actor", "anna"]


@pytest.fixture
def database_name(database_with: Callable[..., str]) -> str:
    """A database with the tables of the inbox."""
    return database_with("inbox")


@pytest.fixture
def database(postgres_server: PostgresServer, database_name: str) -> str:
    return postgres_server.dsn(SUPERUSER, database_name)


@pytest.fixture
def settings(postgres_server: PostgresServer, database_name: str) -> dict[str, str]:
    """A consumer's database, as an operator sees it."""
    postgres_server.execute(f"ALTER ROLE {OUTBOX_OPERATOR} PASSWORD '{PASSWORD}'")
    port = postgres_server.config.port
    operator = f"postgresql://{OUTBOX_OPERATOR}:{PASSWORD}@127.0.0.1:{port}/{database_name}"
    return {"CHAINCTL_DATABASE": operator}


@pytest.fixture
def letters(settings: dict[str, str], database: str) -> list[UUID]:
    """Three dead letters: two whose tries are used up, one that was refused."""
    ids = draw_message_ids(3)

    async def bury() -> None:
        async with connected(database) as connection:
            inbox = await Inbox.open(connection, "clearing", 10.0)
            for number, message_id in enumerate(ids):
                letter = Delivery(
                    message_id=message_id, destination="clearing", payload=b"note \xff",
                    key_bytes=b"K", headers={"a": b"b"}, topic="trades", partition=1,
                    offset=number, received_at=datetime.now(UTC),
                )  # fmt: skip
                reason = REFUSED if number == 2 else TRIES_USED_UP
                await inbox.bury(
                    connection, letter, failures=17, reason=reason, error="ValueError: no"
                )

    asyncio.run(bury())
    assert settings
    return ids


def parked(database: str) -> int:
    async def count() -> int:
        async with connected(database) as connection:
            return int(await connection.fetchval("SELECT count(*) FROM inbox_parked"))

    return asyncio.run(count())


def listed(ctl: Ctl, *options: str) -> list[str]:
    return [letter["message_id"] for letter in ctl.json("outbox", "dead", "list", *options)]


def test_dead_letters_are_listed_with_their_reason(ctl: Ctl, letters: list[UUID]) -> None:
    out = ctl.done("outbox", "dead", "list")
    head, *rows = out.splitlines()
    assert head.split() == ["MESSAGE_ID", "CONSUMER", "DEAD", "WHY", "FAILURES", "LAST_ERROR"]
    assert len(rows) == 3
    assert any(re.search(r"clearing .* tries used up +17  ValueError: no$", row) for row in rows)
    assert sorted(listed(ctl)) == sorted(map(str, letters))
    assert listed(ctl, "--why", REFUSED) == [str(letters[2])]
    assert listed(ctl, "--consumer", "nobody") == []
    assert len(listed(ctl, "--key", "K", "--limit", "2")) == 2
    assert listed(ctl, "--older-than", "3600") == []
    assert listed(ctl, "--id", str(letters[1])) == [str(letters[1])]


def test_dead_letter_is_shown_with_what_it_holds_and_what_was_done(
    ctl: Ctl, letters: list[UUID]
) -> None:
    ctl.done("outbox", "dead", "abandon", "--id", letters[0], *WHY)
    out = ctl.done("outbox", "dead", "show", letters[0])
    for noted in ("trades/1 at 0", "header a: b", "payload: note \\xff", "abandon by anna: fixed"):
        assert noted in out
    shown_all = ctl("outbox", "dead", "show", letters[0], "--json")
    (shown,) = json.loads(shown_all.out)
    assert shown["letter"]["message_id"] == str(letters[0])
    assert shown["acts"][0]["actor"] == "anna"


def test_retry_of_one_parks_it_anew_and_stores_the_act(
    ctl: Ctl, letters: list[UUID], database: str
) -> None:
    found = ctl.json("outbox", "dead", "retry", "--id", letters[1], *WHY)
    assert found[0]["message_id"] == str(letters[1])
    assert parked(database) == 1
    assert str(letters[1]) not in listed(ctl)
    acts = ctl("outbox", "dead", "acts", "--since", "1h", "--json")
    (act,) = json.loads(acts.out)
    noted = {name: act[name] for name in ("act", "message_id", "consumer", "actor", "reason")}
    assert noted == {
        "act": "retry", "message_id": str(letters[1]), "consumer": "clearing", "actor": "anna",
        "reason": "fixed",
    }  # fmt: skip
    assert "anna" in ctl("outbox", "dead", "acts").out


def test_retry_of_many_with_dry_run_does_nothing(
    ctl: Ctl, letters: list[UUID], database: str
) -> None:
    chosen = ["--why", TRIES_USED_UP]
    dry = ctl("outbox", "dead", "retry", *chosen, *WHY, "--dry-run")
    assert (dry.code, dry.err) == (0, "chainctl: 2 dead letters to be retried\n")
    assert parked(database) == 0
    done = ctl("outbox", "dead", "retry", *chosen, *WHY)
    assert (done.code, done.err) == (0, "chainctl: 2 dead letters retried\n")
    assert parked(database) == 2
    assert listed(ctl) == [str(letters[2])]


def test_abandon_of_many_leaves_them_listed_as_such(ctl: Ctl, letters: list[UUID]) -> None:
    done = ctl("outbox", "dead", "abandon", "--all", *WHY)
    assert (done.code, done.err) == (0, "chainctl: 3 dead letters abandoned\n")
    assert listed(ctl) == []
    assert len(listed(ctl, "--abandoned")) == len(letters)


@pytest.mark.parametrize("act", ["retry", "abandon"])
def test_act_without_a_choice_or_a_reason_is_refused(
    ctl: Ctl, letters: list[UUID], act: str
) -> None:
    assert "--all" in ctl.refused("outbox", "dead", act, *WHY)
    assert "reason" in ctl.refused("outbox", "dead", act, "--all")
    blank = ["--all", "--reason", " "]
    assert "reason" in ctl.refused("outbox", "dead", act, *blank)
    unknown = draw_message_ids(1)[0]
    done = ctl("outbox", "dead", act, "--id", unknown, *WHY)
    assert (done.code, done.err.split()[1]) == (1, "0")
    assert len(listed(ctl)) == len(letters)


def test_dead_letters_of_a_database_without_the_inbox_are_refused(
    refused: Refused, empty_database: str
) -> None:
    without = {"CHAINCTL_DATABASE": empty_database}
    assert "schema" in refused("outbox", "dead", "list", settings=without)


# ------------------------------------------------------------- past a record that cannot be read


class Stopped:
    """The topic of a consumer that a record stops."""

    def __init__(self, kafka: KafkaServer, database: str, topic: str, call: Call) -> None:
        self.server, self.kafka, self.topic, self._call = kafka, kafka.bootstrap, topic, call
        self.config = ConsumerConfig(
            name="clearing", topics=(topic,), kafka=self.kafka, database=database
        )
        self.settings = {"CHAINCTL_KAFKA": self.kafka}

    def send(self, *are_aborted: bool) -> None:
        """Send one record in a transaction of its own for each of them."""

        async def send() -> None:
            await make_topics(self.kafka, self.topic)
            name = f"t.{self.topic}"
            async with AIOKafkaProducer(
                bootstrap_servers=self.kafka, transactional_id=name
            ) as producer:
                for is_aborted in are_aborted:
                    await producer.begin_transaction()
                    await producer.send_and_wait(self.topic, b"no message")
                    end = producer.abort_transaction if is_aborted else producer.commit_transaction
                    await end()

        asyncio.run(send())

    def stop_at(self, match: str) -> None:
        """Run the consumer until the record stops it."""
        with pytest.raises(TopicError, match=match):
            asyncio.run(self._consume())

    async def _consume(self) -> None:
        async def refuse(*_: object) -> None:
            raise AssertionError("no message was sent")

        async with deadline(), Consumer(self.config) as consumer:
            await consumer.run(refuse)

    def words(self, consumer: str = "clearing") -> list[str]:
        return ["outbox", "dead", "pass-over", consumer, f"topic:{self.topic}:0"]

    def pass_over(self, offset: int, *more: str) -> Done:
        return self._call(*self.words(), str(offset), *WHY, *more, settings=self.settings)

    def acts(self) -> list[dict[str, str]]:
        done = self._call("outbox", "dead", "acts", "--json", settings=self.settings)
        assert done.code == 0, done
        found: list[dict[str, str]] = json.loads(done.out)
        return found


@pytest.fixture
def stopped(
    kafka_server: KafkaServer, database: str, settings: dict[str, str], call: Call, suffix: str
) -> Stopped:
    made = Stopped(kafka_server, database, f"trades-{suffix}", call)
    made.settings |= settings
    return made


def test_unreadable_record_after_a_mark_of_a_transaction_is_passed_over(
    refused: Refused, stopped: Stopped
) -> None:
    """The consumer has committed offset 1, which is the mark; its next record is 2."""
    stopped.send(False, False)
    damage_batch(stopped.server, stopped.topic, 2)
    stopped.stop_at("offset 2 was")
    for dry_run in (["--dry-run"], []):
        for other in (0, 1, 3):
            given = [*stopped.words(), str(other), *WHY, *dry_run]
            assert "the next record of this consumer" in refused(*given, settings=stopped.settings)
        goes = "would go" if dry_run else "goes"
        done = stopped.pass_over(2, *dry_run)
        assert (done.code, f"clearing {goes} on at 3" in done.err) == (0, True), done
    again = refused(*stopped.words(), "2", *WHY, "--dry-run", settings=stopped.settings)
    assert "the next record of this consumer" in again
    nobody = [*stopped.words("nobody"), "2", *WHY, "--dry-run"]
    assert "consumer" in refused(*nobody, settings=stopped.settings)


def test_record_of_an_aborted_transaction_that_stops_a_consumer_is_passed_over(
    stopped: Stopped,
) -> None:
    """Its checksum is right: a reader of committed records alone would skip it unread."""
    stopped.send(True, False)
    damage_batch(stopped.server, stopped.topic, 0, is_sealed=True)
    stopped.stop_at("offset 0 was 'sent like that")
    done = stopped.pass_over(0)
    assert (done.code, "clearing goes on at 1" in done.err) == (0, True), done
    (act,) = stopped.acts()
    assert act["detail"].startswith(f"topic:{stopped.topic}:0 from 0 to 1: ")


DIES_AT_COMMIT = """
CREATE FUNCTION die() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
    AS 'BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NULL; END';
CREATE CONSTRAINT TRIGGER dies AFTER INSERT ON inbox_act
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION die()
"""


def test_no_consumer_goes_past_a_record_whose_act_was_lost_at_its_commit(
    stopped: Stopped, postgres_server: PostgresServer, database_name: str
) -> None:
    stopped.send(False)
    damage_batch(stopped.server, stopped.topic, 0)
    stopped.stop_at("offset 0 was")
    postgres_server.execute(DIES_AT_COMMIT, database=database_name)
    lost = stopped.pass_over(0)
    assert (lost.code, "topic" in lost.out) == (3, False), lost
    assert stopped.acts() == []
    stopped.stop_at("offset 0 was")
    postgres_server.execute("DROP TRIGGER dies ON inbox_act", database=database_name)
    assert stopped.pass_over(0).code == 0
    (act,) = stopped.acts()
    assert (act["act"], act["actor"], act["reason"]) == ("pass-over", "anna", "fixed")


def test_move_that_failed_after_its_act_is_made_by_the_same_command(
    stopped: Stopped, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The act may have been stored though its answer was lost, or the broker may go away."""
    stopped.send(False)
    damage_batch(stopped.server, stopped.topic, 0)
    stopped.stop_at("offset 0 was")

    async def is_slow() -> None:
        raise TimeoutError("the database")

    with pytest.raises(TimeoutError, match="the database"):  # and not a broker that is away
        asyncio.run(go_past(stopped.config, (stopped.topic, 0), 0, 1, is_slow))
    with monkeypatch.context() as away:
        store = DeadLetters.pass_over

        async def store_and_lose(*given: Any, **named: Any) -> bool:
            await store(*given, **named)
            raise ConnectionResetError

        away.setattr(DeadLetters, "pass_over", store_and_lose)
        assert stopped.pass_over(0).code == 3
    assert len(stopped.acts()) == 1
    stopped.stop_at("offset 0 was")
    assert stopped.pass_over(0).code == 0
    assert {act["detail"] for act in stopped.acts()} == {
        f"topic:{stopped.topic}:0 from 0 to 1: its checksum is wrong"
    }


def test_no_act_is_stored_while_a_process_of_the_consumer_runs(
    refused: Refused, stopped: Stopped
) -> None:
    stopped.send(False)
    damage_batch(stopped.server, stopped.topic, 0)
    stopped.stop_at("offset 0 was")

    async def run() -> str:
        reader = AIOKafkaConsumer(
            stopped.topic,
            group_id="clearing",
            bootstrap_servers=stopped.kafka,
            enable_auto_commit=False,
        )
        async with deadline(), reader:
            given = [*stopped.words(), "0", *WHY]
            return await asyncio.to_thread(refused, *given, settings=stopped.settings)

    assert "no process is running: stop it first" in asyncio.run(run())
    assert stopped.acts() == []
