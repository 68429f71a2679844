"""`chainctl sequence --intake-topic`: replaced, stopped, a topic becomes a chain once."""

import asyncio
import json
import platform
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer

from tests.builders.orders import order_file
from tests.builders.topics import StrangeName, let_names_be_bytes
from tests.deadlines import LONG_SECONDS
from tests.integration.chainctl.conftest import Call, Ctl, Refused, Start
from tests.integration.chainctl.order_topic import PARTITIONS, Topic

LEASE_SECONDS = 1.5
"""Promised beside the lease. The rest of a measured time is the start of a process, and the load of
a machine that tests."""


@pytest.fixture
def topic(
    module_settings: dict[str, str], chain: int, make_topic: Callable[..., None]
) -> Iterator[Topic]:
    name = f"in.{chain}"
    make_topic(name, PARTITIONS)
    topic = Topic(module_settings, name, chain)
    yield topic
    topic.stop_load()


@pytest.fixture
def lead(start: Start, topic: Topic) -> Callable[..., subprocess.Popen[str]]:
    """Starts `chainctl sequence` from the topic."""

    def run(*options: object) -> subprocess.Popen[str]:
        return start(
            "sequence", "--chain", topic.chain, "--intake-topic", topic.name, "--json",
            "--lease-seconds", LEASE_SECONDS, "--batch-rows", 50, *options,
            settings=topic.settings,
        )  # fmt: skip

    return run


def end(process: subprocess.Popen[str], code: int) -> tuple[str, str]:
    out, err = process.communicate()
    assert process.returncode == code, (process.returncode, out, err)
    assert "Traceback" not in err
    return out, err


def test_sequence_from_a_topic_runs_until_sigterm_and_reports_what_it_did(
    lead: Callable[..., subprocess.Popen[str]], topic: Topic
) -> None:
    topic.send(200)
    process = lead()
    topic.until_taken(process)
    process.send_signal(signal.SIGTERM)
    out, err = end(process, 143)
    summary = json.loads(out)
    assert summary.pop("seconds") > 0
    assert summary == {
        "chain": topic.chain,
        "topic": topic.name,
        "epoch": 1,
        "records": sum(topic.ends.values()),
        "rejects": 0,
        "orders": 200,
        "last_id": 200,
    }
    assert f"leading chain {topic.chain}, epoch 1" in err
    assert topic.head()["released"]
    topic.assert_is_chain()


@pytest.mark.merge
def test_record_with_a_header_whose_name_is_no_text_is_an_order_like_any(
    lead: Callable[..., subprocess.Popen[str]], topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_names_be_bytes(monkeypatch)
    keys = [f"k#{number}" for number in range(1, 6)]

    async def send() -> None:
        kafka = topic.settings["CHAINCTL_KAFKA"]
        async with AIOKafkaProducer(bootstrap_servers=kafka) as producer:
            for key in keys:
                headers = [(StrangeName("x"), b"1")] if key == "k#3" else []
                await producer.send_and_wait(
                    topic.name, b"order", key=key.encode(), partition=0, headers=headers
                )

    asyncio.run(send())
    topic.ends[0] = len(keys)
    process = lead()
    topic.until_taken(process)
    process.send_signal(signal.SIGTERM)
    out, _ = end(process, 143)
    assert json.loads(out)["orders"] == len(keys)
    assert [key for _, _, key in topic.rows()] == keys


def self_leads(topic: Topic, before: int) -> bool:
    """Say whether a newer leader than that of epoch `before` has taken something."""
    found = topic.query("SELECT max(epoch) AS epoch FROM chain_batch WHERE chain_id = $1")
    return (found[0]["epoch"] or 0) > before


def act(topic: Topic, call: Call, command: str, *options: object) -> dict[str, Any]:
    done = call(
        command, "--chain", topic.chain, "--reason", "a drill", "--actor", "ann", "--json",
        *options, settings=topic.settings,
    )  # fmt: skip
    assert done.code == 0, done
    found: dict[str, Any] = json.loads(done.out)
    return found


def leader_state(topic: Topic, call: Call) -> str:
    done = call("leader", "--chain", topic.chain, "--json", settings=topic.settings)
    assert done.code == 0, done
    state: str = json.loads(done.out)["leader_state"]
    return state


def test_leader_that_is_asked_to_step_down_hands_over_and_ends_cleanly(
    lead: Callable[..., subprocess.Popen[str]], topic: Topic, call: Call
) -> None:
    assert leader_state(topic, call) == "never led"
    leader = lead()
    topic.start_load()
    topic.until(lambda: self_leads(topic, 0))
    standby = lead("--standby")
    until_waiting(topic)
    assert act(topic, call, "step-down", "--dry-run") == {
        "chain": topic.chain, "epoch": 1, "act_id": None, "is_over": None,
        "next_leader": None, "next_epoch": None,
    }  # fmt: skip
    assert leader_state(topic, call) == "leads"
    done = act(topic, call, "step-down", "--wait", "600s")
    assert (done["epoch"], done["is_over"]) == (1, True)
    out, err = end(leader, 0)
    assert json.loads(out)["epoch"] == 1
    assert f"chain {topic.chain}: stepped down on request, in epoch 1" in err
    topic.until(lambda: self_leads(topic, 1))
    topic.stop_load()
    topic.until_taken(standby)
    standby.send_signal(signal.SIGTERM)
    end(standby, 143)
    topic.assert_is_chain()
    assert leader_state(topic, call) == "handed over"
    (kept,) = topic.query("SELECT act, actor, reason FROM chain_act WHERE chain_id = $1")
    assert tuple(kept) == ("step-down", "ann", "a drill")


def test_standby_that_starts_while_the_broker_is_away_leads_when_the_leader_steps_down(
    lead: Callable[..., subprocess.Popen[str]],
    topic: Topic,
    start: Start,
    call: Call,
    tmp_path: Path,
) -> None:
    leader = lead()
    topic.until(lambda: leader_state(topic, call) == "leads")
    log = tmp_path / "standby.log"
    with log.open("w") as stderr:
        standby = start(
            "sequence", "--chain", topic.chain, "--intake-topic", topic.name, "--standby",
            "--connect-seconds", 1, settings={**topic.settings, "CHAINCTL_KAFKA": "127.0.0.1:1"},
            stderr=stderr,
        )  # fmt: skip
    until_waiting(topic)
    assert act(topic, call, "step-down", "--wait", "600s")["is_over"]
    end(leader, 0)
    topic.until(lambda: leader_state(topic, call) == "leads")
    topic.until(lambda: "trying again" in log.read_text(), standby)
    standby.send_signal(signal.SIGTERM)
    assert standby.wait() == 143
    said = log.read_text()
    assert "waits as a standby all the same" in said
    assert "Traceback" not in said


def test_takeover_replaces_a_leader_that_hangs_before_its_lease_has_passed(
    lead: Callable[..., subprocess.Popen[str]], topic: Topic, call: Call, refused: Refused
) -> None:
    line = refused("takeover", "--chain", topic.chain, "--reason", "x", settings=topic.settings)
    assert "a chain that a process leads" in line
    # The lease is longer than this test may take: who waited for it would never lead here.
    hanging = lead("--lease-seconds", LONG_SECONDS)
    topic.send(100)
    topic.until_taken(hanging)
    standby = lead("--standby", "--lease-seconds", LONG_SECONDS)
    until_waiting(topic)
    hanging.send_signal(signal.SIGSTOP)
    takeover = ("takeover", "--chain", topic.chain, "--reason", "a drill", "--wait", "600s")
    done = call(*takeover, settings=topic.settings)
    assert done.code == 0, done
    assert f"epoch 1 has ended; {host_of(standby)} leads, in epoch 2" in done.err
    topic.send(100)
    topic.until_taken(standby)
    assert self_leads(topic, 1)
    hanging.send_signal(signal.SIGCONT)
    hanging.send_signal(signal.SIGTERM)
    hanging.communicate()
    standby.send_signal(signal.SIGTERM)
    end(standby, 143)
    topic.assert_is_chain()


def host_of(process: subprocess.Popen[str]) -> str:
    """The name that a sequencer gives itself."""
    return f"{platform.node()}:{process.pid}"


def until_waiting(topic: Topic) -> None:
    """Wait until a standby has looked at the lease: it holds a connection, and leads nothing."""
    query = (
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() "
        "AND application_name = 'orderchain sequencer ' || $1::integer"
    )
    topic.until(lambda: len(topic.query(query)) == 2)


@pytest.mark.nightly
def test_standby_with_a_file_goes_on_where_the_leader_of_the_same_file_was_killed(
    start: Start, topic: Topic, tmp_path: Any
) -> None:
    path = order_file(tmp_path / "o.csv", 60_000)
    arguments = (
        "sequence", "--chain", topic.chain, "--input", path, "--json",
        "--lease-seconds", LEASE_SECONDS, "--batch-rows", 20,
    )  # fmt: skip
    leader = start(*arguments, settings=topic.settings)
    topic.until(lambda: self_leads(topic, 0))
    standby = start(*arguments, "--standby", "--batch-rows", 5_000, settings=topic.settings)
    until_waiting(topic)
    leader.kill()
    out, _ = end(standby, 0)
    summary = json.loads(out)
    assert summary["rows_before"] > 0
    assert summary["rows_before"] + summary["orders"] == 60_000
    assert [key for _, _, key in topic.rows()] == [f"o.csv#{n}" for n in range(1, 60_001)]


def test_second_leader_without_standby_is_refused_its_chain(
    lead: Callable[..., subprocess.Popen[str]], topic: Topic
) -> None:
    topic.send(10)
    leader = lead()
    topic.until_taken(leader)
    out, err = end(lead(), 3)
    assert out == ""
    assert "which is alive" in err
    leader.send_signal(signal.SIGTERM)
    end(leader, 143)


def test_ids_that_hold_the_time_need_a_chain_with_large_partitions(
    ctl: Ctl, start: Start, module_settings: dict[str, str], topic: Topic
) -> None:
    options = ("--intake-topic", topic.name, "--id-strategy", "time", "--json")
    line = ctl.refused("sequence", "--chain", topic.chain, *options)
    assert "--partition-ids 90596966400000 is a day" in line
    timed = topic.chain + 1 if topic.chain < 2**31 - 1 else 999
    ctl.done("chain", "create", timed, "--partition-ids", 86_400_000 << 20)
    topic.send(50)
    topic.chain = timed
    before_ms = int(time.time() * 1_000)
    process = start("sequence", "--chain", timed, *options, settings=module_settings)
    topic.until_taken(process)
    process.send_signal(signal.SIGTERM)
    end(process, 143)
    first_id = topic.rows()[0][0]
    assert before_ms <= first_id >> 20 <= int(time.time() * 1_000)
    topic.assert_is_chain()


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ((), "--input FILE, or --intake-topic TOPIC"),
        (("--intake-topic", "t", "--input", "f.csv"), "--input cannot be given with"),
        (("--intake-topic", "t", "--key-column", "k"), "--key-column cannot be given with"),
        (("--input", "f.csv", "--start-at", "end"), "--start-at cannot be given with --input"),
        (("--intake-topic", "no/name"), "--intake-topic was 'no/name'"),
        (("--intake-topic", "t", "--batch-rows", "0"), "batch_rows was 0"),
        (("--intake-topic", "t", "--id-strategy", "random"), "--id-strategy"),
    ],
)
def test_sequence_with_options_that_say_nothing_is_refused(
    ctl: Ctl, options: tuple[str, ...], part: str
) -> None:
    done = ctl("sequence", "--chain", 1, *options)
    assert (done.code, done.out) == (2, "")
    assert part in " ".join(done.err.split())


def test_topic_that_is_missing_is_refused_before_anything_is_taken(ctl: Ctl, chain: int) -> None:
    line = ctl.refused("sequence", "--chain", chain, "--intake-topic", "not.there")
    assert line == "chainctl: topic was 'not.there', expected a topic that exists\n"
