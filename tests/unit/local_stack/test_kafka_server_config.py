from __future__ import annotations

import os
from pathlib import Path

from local_stack import KafkaServer, KafkaServerConfig, ProxiedListener, SecuredListener
from local_stack.folders import Account
from local_stack.kafka import _new_cluster_id

OURSELVES = Account(name="me", user_id=os.geteuid(), group_id=os.getegid(), switched=False)


def settings_of(config: KafkaServerConfig) -> dict[str, str]:
    lines = KafkaServer(config, account=OURSELVES)._settings().splitlines()
    return dict(line.split("=", 1) for line in lines if not line.startswith("#"))


def test_settings_stay_on_loopback() -> None:
    config = KafkaServerConfig(directory=Path("/d"), port=20_001, controller_port=20_002)
    settings = settings_of(config)
    assert settings["listeners"] == "PLAINTEXT://127.0.0.1:20001,CONTROLLER://127.0.0.1:20002"
    assert settings["advertised.listeners"] == "PLAINTEXT://127.0.0.1:20001"
    assert settings["controller.quorum.voters"] == "1@127.0.0.1:20002"
    assert settings["auto.create.topics.enable"] == "false"


def test_settings_with_a_proxy_advertise_the_proxys_port() -> None:
    proxied = ProxiedListener(port=20_003, advertised_port=20_004)
    config = KafkaServerConfig(
        directory=Path("/d"), port=20_001, controller_port=20_002, proxied=proxied
    )
    settings = settings_of(config)
    assert "PROXIED://127.0.0.1:20003" in settings["listeners"].split(",")
    assert "PROXIED://127.0.0.1:20004" in settings["advertised.listeners"].split(",")


def test_settings_of_the_caller_win() -> None:
    config = KafkaServerConfig(
        directory=Path("/d"),
        port=20_001,
        controller_port=20_002,
        settings={"num.partitions": "7", "a": "b\\c"},
    )
    settings = settings_of(config)
    assert settings["num.partitions"] == "7"
    assert settings["a"] == "b\\\\c"


def test_new_cluster_id_never_looks_like_an_option() -> None:
    ids = [_new_cluster_id() for _ in range(500)]
    assert all(len(one) == 22 and one[0] != "-" for one in ids)


def test_kafka_config_with_secured_listener_names_it_its_protocol_and_its_settings() -> None:
    secured = SecuredListener(
        name="TRADERS",
        port=20_005,
        protocol="SASL_SSL",
        host="localhost",
        settings={"ssl.keystore.key": "two\nlines"},
    )
    config = KafkaServerConfig(
        directory=Path("/x"), port=20_001, controller_port=20_002, secured=(secured,)
    )
    settings = settings_of(config)
    assert "TRADERS://127.0.0.1:20005" in settings["listeners"].split(",")
    assert "TRADERS://localhost:20005" in settings["advertised.listeners"].split(",")
    assert "TRADERS:SASL_SSL" in settings["listener.security.protocol.map"].split(",")
    assert settings["listener.name.traders.ssl.keystore.key"] == "two\\nlines"
