import json
from collections.abc import Callable

import pytest
from aiokafka.admin import NewTopic

from tests.integration.chainctl.conftest import Admin, Ctl, Refused


def test_chain_created_twice_is_created_once(ctl: Ctl, free_chain: int) -> None:
    first = ctl("chain", "create", free_chain, "--json")
    again = ctl("chain", "create", free_chain, "--json")
    topic = f"orderchain.{free_chain}"
    assert json.loads(first.out) == {
        "chain": free_chain, "topic": topic, "chain_created": True, "topic_created": True,
    }  # fmt: skip
    assert json.loads(again.out) == {
        "chain": free_chain, "topic": topic, "chain_created": False, "topic_created": False,
    }  # fmt: skip
    assert again.code == 0
    assert "is there already" in again.err


def test_chain_whose_topic_is_missing_gets_it_by_creating_it_again(
    ctl: Ctl, chain: int, admin: Admin
) -> None:
    admin(lambda client: client.delete_topics([f"orderchain.{chain}"]))
    found = ctl.json("chain", "create", chain)
    assert found["topic_created"] is True
    assert found["chain_created"] is False


def test_chain_is_listed_with_its_heads(ctl: Ctl, chain: int) -> None:
    listed = ctl.json("chain", "list")
    (found,) = [row for row in listed if row["chain"] == chain]
    assert found["created"].endswith("Z")
    assert found["leader_state"] == "never led"
    for name in ("epoch", "head_persisted", "head_published"):
        assert found[name] == 0
    assert (found["chain"], found["topic"]) == (chain, f"orderchain.{chain}")
    table = ctl("chain", "list").out.splitlines()
    assert table[0].split()[:3] == ["CHAIN", "EPOCH", "HEAD_PERSISTED"]
    assert any(line.split()[0] == str(chain) for line in table[1:])


def test_topic_of_a_new_chain_keeps_every_record_for_a_while(chain: int, admin: Admin) -> None:
    from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

    resource = ConfigResource(ConfigResourceType.TOPIC, f"orderchain.{chain}")
    (response,) = admin(lambda client: client.describe_configs([resource]))
    found = {entry[0]: entry[1] for entry in response.resources[0][4]}
    assert found["cleanup.policy"] == "delete"
    assert int(found["retention.ms"]) == 7 * 24 * 3_600_000
    assert found["message.timestamp.type"] == "LogAppendTime"
    assert int(found["max.message.bytes"]) > 8 * 1024 * 1024


def test_chain_is_refused_the_topic_of_another_one(ctl: Ctl, chain: int) -> None:
    other = chain - 1
    line = ctl.refused("chain", "create", other, "--topic", f"orderchain.{chain}")
    assert f"this one is chain {chain}'s" in line
    assert "expected a created chain" in ctl.refused("status", "--chain", other)


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [("--topic", "'other'", "orderchain."), ("--partition-ids", "7", "10000000")],
)
def test_chain_created_again_as_something_else_is_refused(
    ctl: Ctl, chain: int, option: str, value: str, expected: str
) -> None:
    line = ctl.refused("chain", "create", chain, option, value.strip("'"))
    named = option.removeprefix("--").replace("-", "_")
    assert f"{named} of chain {chain} was {value}, expected {expected}" in line


@pytest.mark.parametrize(
    ("partitions", "topic_settings", "part"),
    [
        (2, {}, "exactly 1 partition (it has 2)"),
        (1, {"cleanup_policy": "compact"}, "cleanup.policy"),
    ],
)
def test_chain_with_a_topic_that_cannot_carry_it_is_refused_and_not_made(
    ctl: Ctl, free_chain: int, make_topic: Callable[..., None], partitions: int,
    topic_settings: dict[str, str], part: str,
) -> None:  # fmt: skip
    make_topic(f"orderchain.{free_chain}", partitions, **topic_settings)
    assert part in ctl.refused("chain", "create", free_chain)
    assert "created chain" in ctl.refused("status", "--chain", free_chain)


@pytest.mark.parametrize("topic", ["", "a b", "x" * 250, "..", "a\nb"])
def test_chain_with_a_topic_name_that_is_none_is_refused(
    ctl: Ctl, free_chain: int, topic: str
) -> None:
    assert "--topic was" in ctl.refused("chain", "create", free_chain, "--topic", topic)


def test_chain_created_without_kafka_is_refused_and_not_made(
    ctl: Ctl, refused: Refused, settings: dict[str, str], free_chain: int
) -> None:
    away = {**settings, "CHAINCTL_KAFKA": "127.0.0.1:1"}
    assert "kafka was '127.0.0.1:1'" in refused("chain", "create", free_chain, settings=away)
    assert "created chain" in ctl.refused("status", "--chain", free_chain)


# ------------------------------------------------------------------------------------------ topics


def test_topic_of_an_intake_is_made_once_and_refused_where_no_intake_could_use_it(
    ctl: Ctl, free_chain: int, admin: Admin
) -> None:
    name = f"orders-{free_chain}"
    for is_new in (True, False):
        done = ctl("topic", "create", name, "--partitions", 3, "--json")
        assert done.code == 0, done
        assert json.loads(done.out) == {"topic": name, "topic_created": is_new}
    lacking = f"compacted-{free_chain}"
    new = NewTopic(lacking, 1, 1, topic_configs={"cleanup.policy": "compact"})
    admin(lambda client: client.create_topics([new]))
    for arguments, message in (
        ((lacking,), f"cleanup.policy of topic {lacking}"),
        ((f"{name}.2", "--set", "cleanup.policy=compact"), "'compact', expected delete"),
        ((f"{name}.2", "--set", "retention.ms"), "--set was 'retention.ms', expected NAME=VALUE"),
        ((f"{name}.2", "--set", "no.such=1"), "no.such"),
        ((f"{name}.2", "--replicas", 7), "replica"),
        ((f"{name}.2", "--partitions", 0), "--partitions"),
        (("or/ders",), "1 to 249 of the characters A-Z a-z 0-9 . _ -"),
    ):
        assert message in ctl.refused("topic", "create", *arguments)
