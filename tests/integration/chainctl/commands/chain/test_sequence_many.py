"""`chainctl sequence --chains`: many chains in one process, each for itself."""

import json
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any
from urllib.request import urlopen

import pytest

from tests.deadlines import Deadline
from tests.integration.chainctl.conftest import Call, Ctl, Start
from tests.integration.chainctl.order_topic import Topic

COUNT = 3
LEASE_SECONDS = 1.5


@pytest.fixture
def topics(
    module_settings: dict[str, str], chain: int, ctl: Ctl, make_topic: Callable[..., None]
) -> Iterator[list[Topic]]:
    """The topics of three chains, one after the other."""
    chains = range(chain, chain + COUNT)
    for each in chains[1:]:
        ctl.done("chain", "create", each)
    topics = [Topic(module_settings, f"many.{each}", each) for each in chains]
    for topic in topics:
        make_topic(topic.name, 3)
    yield topics
    for topic in topics:
        topic.stop_load()


@pytest.fixture
def lead(start: Start, topics: list[Topic]) -> Callable[..., subprocess.Popen[str]]:
    def run(*options: object) -> subprocess.Popen[str]:
        return start(
            "sequence", "--chains", f"{topics[0].chain}-{topics[-1].chain}", "--json",
            "--intake-topic", "many.{chain}", "--connections", 2, "--standby",
            "--lease-seconds", LEASE_SECONDS, *options, settings=topics[0].settings,
        )  # fmt: skip

    return run


def leader_of(topic: Topic, call: Call) -> tuple[str | None, int]:
    done = call("leader", "--chain", topic.chain, "--json", settings=topic.settings)
    assert done.code == 0, done
    found = json.loads(done.out)
    return found["leader"] if found["leader_state"] == "leads" else None, found["epoch"]


def hand_over(topic: Topic, call: Call) -> None:
    done = call(
        "step-down", "--chain", topic.chain, "--reason", "a drill", "--wait", "600s",
        settings=topic.settings,
    )  # fmt: skip
    assert done.code == 0, done


def until_led_by(process: subprocess.Popen[str], topic: Topic, epoch: int, call: Call) -> None:
    def is_led() -> bool:
        leader, found = leader_of(topic, call)
        return leader is not None and leader.endswith(f":{process.pid}") and found == epoch

    topic.until(is_led, process)


def hand_back(topic: Topic, to: subprocess.Popen[str], call: Call) -> int:
    """Hand over until `to` leads; return the epoch. The other may be the first to look again."""
    for epoch in count(3):
        hand_over(topic, call)
        topic.until(lambda: leader_of(topic, call)[0] is not None, to)
        leader, _ = leader_of(topic, call)
        if leader is not None and leader.endswith(f":{to.pid}"):
            return epoch
    raise AssertionError


def ended(process: subprocess.Popen[str], code: int) -> tuple[list[Any], str]:
    out, err = process.communicate()
    assert process.returncode == code, (process.returncode, out, err)
    assert "Traceback" not in err
    return [json.loads(line) for line in out.splitlines()], err


def test_one_of_many_chains_is_handed_over_by_command_and_back(
    lead: Callable[..., subprocess.Popen[str]], topics: list[Topic], call: Call
) -> None:
    one, two, _ = topics
    first = lead("--http", 0)
    for topic in topics:
        until_led_by(first, topic, 1, call)
        topic.start_load()
    second = lead()
    # A standby looks at all of its chains over one connection.
    one.until(lambda: connections(one) == 3, second)
    hand_over(two, call)
    until_led_by(second, two, 2, call)
    epoch = hand_back(two, first, call)
    for topic in topics:
        topic.stop_load()
        topic.until_taken(first)
    assert [leader_of(topic, call)[1] for topic in topics] == [1, epoch, 1]
    for process, led in ((second, [two.chain]), (first, [each.chain for each in topics])):
        process.send_signal(signal.SIGTERM)
        done, err = ended(process, 143)
        assert [each["chain"] for each in done] == led
        assert f"chain {two.chain}: stepped down on request" in err
        assert all(f"leading chain {each}, epoch" in err for each in led)
        found = re.search(r"served at (http://\S+)", err)
        assert (found is not None) is (process is first)
    for topic in topics:
        topic.assert_is_chain()


def connections(first: Topic) -> int:
    """Return how many connections for commits all processes with these chains have."""
    query = (
        "SELECT FROM pg_stat_activity WHERE datname = current_database() "
        "AND application_name LIKE 'orderchain sequencer ' || $1::integer || '-%'"
    )
    return len(first.query(query))


def test_metrics_of_all_chains_are_at_one_place(
    lead: Callable[..., subprocess.Popen[str]], topics: list[Topic]
) -> None:
    process = lead("--http", 0, "--log-format", "json")
    assert process.stderr is not None
    address = json.loads(process.stderr.readline())["message"].rpartition(" ")[2]
    for topic in topics:
        topic.send(20)
        topic.until_taken(process)
    wanted = [f'{name}="{each}"' for topic in topics for name, each in
              (("chain", topic.chain), ("topic", topic.name))]  # fmt: skip
    bound, metrics = Deadline(), ""
    while not all(each in metrics for each in wanted):  # they may be a second old
        assert bound.left() > 0, metrics
        with urlopen(f"{address}/metrics") as answer:  # noqa: S310 - ours
            metrics = answer.read().decode()
    with urlopen(f"{address}/readyz") as answer:  # noqa: S310 - ours
        assert answer.read() == b"ok\n"
    process.send_signal(signal.SIGTERM)
    ended(process, 143)


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ((), "either --chain N, or --chains N-N"),
        (("--chain", 1, "--chains", "1-2"), "either --chain N, or --chains N-N"),
        (("--chains", "1-2", "--input", "f.csv"), "--input cannot be given with --chains"),
        (("--chains", "1-2", "--intake-topic", "t"), "a name with {chain} in it"),
        (("--chains", "5-1", "--intake-topic", "t"), "'5-1', expected 1 to 1,000 chains"),
        (("--chains", "0", "--intake-topic", "t"), "'0', expected 1 to 1,000 chains"),
        (("--chains", "1-2000", "--intake-topic", "t"), "'1-2000', expected 1 to 1,000 chains"),
        (("--chains", "1,,2", "--intake-topic", "t"), "'1,,2', expected 1 to 1,000 chains"),
        (("--chain", 1, "--intake-topic", "t{chain}"), "--intake-topic was 't{chain}'"),
        (("--chain", 1, "--intake-topic", "t", "--connections", 3), "--connections cannot be"),
    ],
)
def test_chains_that_say_nothing_are_refused(ctl: Ctl, options: tuple[str, ...], part: str) -> None:
    done = ctl("sequence", *options)
    assert (done.code, done.out) == (2, "")
    assert part in " ".join(done.err.split())


def test_topic_of_one_chain_that_is_missing_is_refused_before_any_is_taken_over(
    call: Call, topics: list[Topic]
) -> None:
    done = call(
        "sequence", "--chains", f"{topics[0].chain},{topics[1].chain}",
        "--intake-topic", "none.{chain}", settings=topics[0].settings,
    )  # fmt: skip
    assert (done.code, done.out) == (2, "")
    assert "expected a topic that exists" in done.err
    assert topics[0].query("SELECT epoch FROM chain_head WHERE chain_id = $1")[0]["epoch"] == 0


def test_topic_of_one_chain_that_comes_late_delays_that_chain_alone(
    start: Start, call: Call, topics: list[Topic], make_topic: Callable[..., None]
) -> None:
    one, late, _ = topics
    make_topic(f"late.{one.chain}", 1)
    process = start(
        "sequence", "--chains", f"{one.chain},{late.chain}", "--intake-topic", "late.{chain}",
        "--standby", "--lease-seconds", LEASE_SECONDS, settings=one.settings,
    )  # fmt: skip
    until_led_by(process, one, 1, call)
    assert leader_of(late, call) == (None, 0)
    make_topic(f"late.{late.chain}", 1)
    until_led_by(process, late, 1, call)
    assert leader_of(one, call)[1] == 1
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate()
    assert (process.returncode, out) == (143, "")
    assert f"topic was 'late.{late.chain}', expected a topic that exists" in err
