"""`chainctl` over a Kafka that asks for TLS and a login: by flag, variable and file."""

from __future__ import annotations

import json
import secrets
from typing import TYPE_CHECKING

import pytest

from chain_kernel.sql import GAP_READER
from local_stack.postgres import SUPERUSER
from tests.integration.chainctl.sizes import FILLED_ROWS
from tests.secured_kafka import PASSWORDS, PREFIX, RECEIVER, SEQUENCER, SecuredKafka

if TYPE_CHECKING:
    from pathlib import Path

    from local_stack import PostgresServer
    from tests.integration.chainctl.conftest import Call, Refused

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]


def login(secured_kafka: SecuredKafka, user: str) -> dict[str, str]:
    """Return the variables for SASL_SSL with SCRAM."""
    return {
        "CHAINCTL_KAFKA": secured_kafka.at("LOGIN"),
        "CHAINCTL_KAFKA_SECURITY_PROTOCOL": "SASL_SSL",
        "CHAINCTL_KAFKA_SASL_MECHANISM": "SCRAM-SHA-512",
        "CHAINCTL_KAFKA_SASL_USERNAME": user,
        "CHAINCTL_KAFKA_SASL_PASSWORD": PASSWORDS[user],
        "CHAINCTL_KAFKA_SSL_CAFILE": str(secured_kafka.authority.path),
    }


def mutual_flags(secured_kafka: SecuredKafka, user: str) -> list[str]:
    """Return the flags for TLS with a client certificate."""
    files = secured_kafka.authority.client(user)
    return [
        "--kafka", secured_kafka.at("MUTUAL"), "--kafka-security-protocol", "SSL",
        "--kafka-ssl-cafile", str(secured_kafka.authority.path),
        "--kafka-ssl-certfile", str(files.certificate), "--kafka-ssl-keyfile", str(files.key),
    ]  # fmt: skip


@pytest.fixture
def databases(postgres_server: PostgresServer, empty_database_name: str) -> dict[str, str]:
    return {
        "CHAINCTL_DATABASE": postgres_server.dsn(SUPERUSER, empty_database_name),
        "CHAINCTL_GAP_DATABASE": postgres_server.dsn(GAP_READER, empty_database_name),
    }


def test_chain_lives_over_tls_by_variables_and_by_flags(
    call: Call, secured_kafka: SecuredKafka, databases: dict[str, str], tmp_path: Path
) -> None:
    orders, journal = tmp_path / "o.csv", tmp_path / "journal"
    orders.write_text("n\n" + "".join(f"{number}\n" for number in range(1, FILLED_ROWS + 1)))
    topic = f"{PREFIX}{secrets.token_hex(6)}"
    leader, reader = (databases | login(secured_kafka, user) for user in (SEQUENCER, RECEIVER))
    certified = mutual_flags(secured_kafka, RECEIVER)
    steps: list[tuple[list[object], dict[str, str]]] = [
        (["schema", "apply"], leader),
        (["chain", "create", 1, "--topic", topic], leader),
        (["sequence", "--chain", 1, "--input", orders], leader),
        (["receive", "--chain", 1, "--output", journal], reader),
        (["verify", "--chain", 1, "--local", "--source", "database", "--source", "topic",
          "--source", f"journal:{journal}"], reader),
        (["verify", "--chain", 1, "--local", "--source", "database", "--source", "topic",
          *certified], databases),
    ]  # fmt: skip
    for arguments, settings in steps:
        done = call(*arguments, settings=settings)
        assert done.code == 0, (arguments, done)
        assert PASSWORDS[RECEIVER] not in done.out + done.err
    found = json.loads(call("doctor", "--json", settings=reader).out)
    (tried,) = [each for each in found if each["what"] == f"records of topic {topic}"]
    assert tried["state"] == "warning"
    assert f"not tried: kafka was '{reader['CHAINCTL_KAFKA']}'" in tried["found"]
    assert f"a user 'receiver' that may write to topic {topic} (ACL)" in tried["found"]


def test_plaintext_client_is_refused_in_one_line(
    refused: Refused, call: Call, secured_kafka: SecuredKafka, databases: dict[str, str]
) -> None:
    settings = databases | {"CHAINCTL_KAFKA": secured_kafka.at("LOGIN")}
    assert call("schema", "apply", settings=settings).code == 0
    line = refused("chain", "create", "1", settings=settings)
    assert "does it ask for TLS or a login?" in line
    assert "speaks PLAINTEXT with us" in line


def test_wrong_password_is_refused_and_not_shown(
    refused: Refused, call: Call, secured_kafka: SecuredKafka, databases: dict[str, str]
) -> None:
    settings = databases | login(secured_kafka, RECEIVER)
    assert call("schema", "apply", settings=settings).code == 0
    settings["CHAINCTL_KAFKA_SASL_PASSWORD"] = "wrong-one"
    line = refused("chain", "create", "1", settings=settings, hidden="wrong-one")
    assert "wrong user or password" in line


def test_topic_without_the_right_to_make_it_is_refused(
    refused: Refused, call: Call, secured_kafka: SecuredKafka, databases: dict[str, str]
) -> None:
    settings = databases | login(secured_kafka, RECEIVER)
    assert call("schema", "apply", settings=settings).code == 0
    topic = f"{PREFIX}{secrets.token_hex(6)}"
    line = refused("chain", "create", "1", "--topic", topic, settings=settings)
    assert f"a user 'receiver' that may create topic {topic} (ACL)" in line


def test_password_from_a_file_works(
    call: Call, secured_kafka: SecuredKafka, databases: dict[str, str], tmp_path: Path
) -> None:
    file = tmp_path / "password"
    file.write_text(PASSWORDS[SEQUENCER] + "\n")
    settings = databases | login(secured_kafka, SEQUENCER)
    del settings["CHAINCTL_KAFKA_SASL_PASSWORD"]
    assert call("schema", "apply", settings=settings).code == 0
    topic = f"{PREFIX}{secrets.token_hex(6)}"
    done = call(
        "chain", "create", "1", "--topic", topic, "--kafka-sasl-password-file", file,
        settings=settings,
    )  # fmt: skip
    assert done.code == 0, done


def test_no_flag_takes_a_secret_and_config_show_hides_them(
    call: Call, secured_kafka: SecuredKafka, tmp_path: Path
) -> None:
    (tmp_path / "chainctl.toml").write_text(
        "kafka_ssl_key_password = 'key-sesame'\nkafka_ssl_check_hostname = false\n"
    )
    done = call("config", "show", "--json", settings=login(secured_kafka, RECEIVER))
    assert done.code == 0, done
    assert PASSWORDS[RECEIVER] not in done.out + done.err
    assert "key-sesame" not in done.out + done.err
    shown = json.loads(done.out)
    assert shown["kafka_sasl_password"] == {
        "value": "***", "source": "CHAINCTL_KAFKA_SASL_PASSWORD",
    }  # fmt: skip
    assert shown["kafka_ssl_key_password"] == {"value": "***", "source": "chainctl.toml"}
    assert shown["kafka_sasl_username"]["value"] == RECEIVER
    assert shown["kafka_ssl_check_hostname"]["value"] is False
    for secret in ("--kafka-sasl-password", "--kafka-ssl-key-password"):
        done = call("config", "show", secret, "sesame")
        assert done.code == 2, done
