"""The same config in the words of Java's client and of librdkafka."""

import re
from typing import Any

import pytest

from chain_kernel.clients.kafka_config import KafkaConfig
from chain_kernel.clients.options import (
    SPARK_REDACTION_REGEX,
    SPARK_SECRET_OPTIONS,
    librdkafka_options,
    spark_kafka_options,
)
from chain_kernel.errors import SettingError
from tests.certificates import Authority

SECRET = "Tr0ub4dor"


def login(password: str = SECRET, user: str = "trader", **given: Any) -> KafkaConfig:
    return KafkaConfig(
        **{
            "bootstrap_servers": "a:1,b:2",
            "security_protocol": "SASL_SSL",
            "sasl_mechanism": "SCRAM-SHA-256",
            "sasl_username": user,
            "sasl_password": password,
            **given,
        }
    )


def mutual(authority: Authority) -> KafkaConfig:
    files = authority.client("trader")
    return KafkaConfig(
        bootstrap_servers="a:1",
        security_protocol="SSL",
        ssl_cafile=str(authority.path),
        ssl_certfile=str(files.certificate),
        ssl_keyfile=str(files.key),
    )


ESCAPES = re.compile(r"\\(.)")
LINE = re.compile(r'\S+ required username="((?:[^"\\]|\\.)*)" password="((?:[^"\\]|\\.)*)";')


def unquoted(text: str) -> str:
    """Read a quoted value as Java's StreamTokenizer does."""
    letters = {"n": "\n", "r": "\r"}
    return ESCAPES.sub(lambda match: letters.get(match[1], match[1]), text)


@pytest.mark.parametrize(
    "value",
    [
        'a"b',
        "a\\",
        'a\\"b',
        "a\\nb",
        "a\nb",
        "a\rb",
        "a;b",
        "a' b",
        "ünï",
        'x"; other required y="',
    ],
)
def test_quotes_and_backslashes_stay_within_their_value(value: str) -> None:
    line = spark_kafka_options(login(value, value))["kafka.sasl.jaas.config"]
    match = LINE.fullmatch(line)
    assert match is not None
    assert [unquoted(each) for each in match.groups()] == [value, value]


def test_certificates_are_in_the_options_themselves(authority: Authority) -> None:
    options = spark_kafka_options(mutual(authority))
    assert options["kafka.ssl.truststore.type"] == "PEM"
    assert options["kafka.ssl.truststore.certificates"].count("BEGIN CERTIFICATE") == 1
    assert options["kafka.ssl.keystore.type"] == "PEM"
    assert "BEGIN CERTIFICATE" in options["kafka.ssl.keystore.certificate.chain"]
    assert "BEGIN PRIVATE KEY" in options["kafka.ssl.keystore.key"]
    assert options["kafka.ssl.endpoint.identification.algorithm"] == "https"
    assert not any("location" in name for name in options)


def test_regex_of_redaction_covers_every_secret_and_those_alone(authority: Authority) -> None:
    regex = re.compile(SPARK_REDACTION_REGEX)
    options = spark_kafka_options(login()) | spark_kafka_options(mutual(authority))
    assert set(options) & set(SPARK_SECRET_OPTIONS) == {
        "kafka.sasl.jaas.config", "kafka.ssl.keystore.key",
    }  # fmt: skip
    hidden = {name for name in options if regex.search(name)}
    assert hidden == set(options) & set(SPARK_SECRET_OPTIONS)
    assert all(regex.search(name) for name in SPARK_SECRET_OPTIONS)
    assert all(regex.search(name) for name in ("my.password", "oauth.TOKEN", "s3.access.key"))
    shown = " ".join(value for name, value in options.items() if name not in hidden)
    assert SECRET not in shown
    assert "PRIVATE KEY" not in shown


@pytest.mark.parametrize("give", [spark_kafka_options, librdkafka_options])
def test_token_function_is_refused_for_drivers_that_cannot_call_it(give: Any) -> None:
    async def draw() -> str:
        return SECRET

    config = KafkaConfig(
        bootstrap_servers="a:1",
        security_protocol="SASL_SSL",
        sasl_mechanism="OAUTHBEARER",
        sasl_token=draw,
    )
    with pytest.raises(SettingError, match="cannot call sasl_token"):
        give(config)
