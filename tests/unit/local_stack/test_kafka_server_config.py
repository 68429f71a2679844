from __future__ import annotations

import os
from pathlib import Path

from local_stack import KafkaServer, KafkaServerConfig
from local_stack.folders import Account
from local_stack.kafka import _new_cluster_id

OURSELVES = Account(name="me", user_id=os.geteuid(), group_id=os.getegid(), switched=False)


def settings_of(further: dict[str, str]) -> dict[str, str]:
    config = KafkaServerConfig(
        directory=Path("/d"), port=20_001, controller_port=20_002, settings=further
    )
    lines = KafkaServer(config, account=OURSELVES)._settings().splitlines()
    return dict(line.split("=", 1) for line in lines if not line.startswith("#"))


def test_settings_stay_on_loopback_and_those_of_the_caller_win() -> None:
    settings = settings_of({"num.partitions": "7", "a": "b\\c", "key": "two\nlines"})
    assert settings["listeners"] == "PLAINTEXT://127.0.0.1:20001,CONTROLLER://127.0.0.1:20002"
    assert settings["advertised.listeners"] == "PLAINTEXT://127.0.0.1:20001"
    assert settings["controller.quorum.voters"] == "1@127.0.0.1:20002"
    assert settings["auto.create.topics.enable"] == "false"
    assert (settings["num.partitions"], settings["a"]) == ("7", "b\\\\c")
    assert settings["key"] == "two\\nlines"


def test_new_cluster_id_never_looks_like_an_option() -> None:
    ids = [_new_cluster_id() for _ in range(500)]
    assert all(len(one) == 22 and one[0] != "-" for one in ids)
