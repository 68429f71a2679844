"""A config of Kafka refuses what cannot work, names the field, and shows no secret."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from chain_kernel.clients.kafka import connection_options
from chain_kernel.clients.kafka_config import MECHANISMS, PROTOCOLS, KafkaConfig
from chain_kernel.errors import ConnectError, SettingError
from tests.certificates import Authority, pkcs8

SECRET = "Tr0ub4dor"
LOGIN: dict[str, Any] = {
    "bootstrap_servers": "broker:9093",
    "security_protocol": "SASL_SSL",
    "sasl_mechanism": "SCRAM-SHA-512",
    "sasl_username": "trader",
    "sasl_password": SECRET,
}


async def draw_token() -> str:
    return SECRET


def test_text_becomes_a_plaintext_config() -> None:
    config = KafkaConfig.of("a:9092, [::1]:9093")
    assert config.security_protocol == "PLAINTEXT"
    assert config.servers == [("a", 9092), ("::1", 9093)]
    assert KafkaConfig.of(config) is config
    assert config.tls_context() is None


@pytest.mark.parametrize("value", [None, 9092, b"a:1", ["a:1"]])
def test_what_is_neither_text_nor_config_is_refused(value: Any) -> None:
    with pytest.raises(SettingError, match="host:port, or a KafkaConfig"):
        KafkaConfig.of(value)


def refused(**given: Any) -> SettingError:
    """Return what both the constructor and the decoder say."""
    with pytest.raises(SettingError) as constructed:
        KafkaConfig(**given)
    if given.get("sasl_token") is None:
        with pytest.raises((SettingError, msgspec.ValidationError)):
            msgspec.convert(given, KafkaConfig)
    assert "\n" not in str(constructed.value)
    assert SECRET not in str(constructed.value)
    return constructed.value


SERVERS = (
    "", "broker", "broker:", ":9092", "broker:0", "broker:65536", "broker:x", "a:1,", "a b:1",
    "kafka://broker:9092", "user@broker:1", "a:1;b:2", "\0:1",
)  # fmt: skip
OF_A_LOGIN = {
    "sasl_mechanism": "PLAIN", "sasl_username": "me", "sasl_password": SECRET,
    "sasl_password_file": "/f", "sasl_token": draw_token,
}  # fmt: skip
OF_TLS = {
    "ssl_cafile": "/c", "ssl_certfile": "/c", "ssl_keyfile": "/c", "ssl_key_password": SECRET,
    "ssl_check_hostname": False,
}  # fmt: skip
REFUSED: list[tuple[str, dict[str, Any]]] = [
    *(("bootstrap_servers", {"bootstrap_servers": servers}) for servers in SERVERS),
    *(
        (field, {"bootstrap_servers": "b:1", "security_protocol": protocol, field: value})
        for protocol in ("PLAINTEXT", "SSL")
        for field, value in OF_A_LOGIN.items()
    ),
    *((field, {"bootstrap_servers": "b:1", field: value}) for field, value in OF_TLS.items()),
    *(
        ("bootstrap_servers", {"bootstrap_servers": f"{host}:9092"})
        for host in ("broker..example", "b" * 64)
    ),
    ("security_protocol", {**LOGIN, "security_protocol": "TLS"}),
    ("security_protocol", {**LOGIN, "security_protocol": "sasl_ssl"}),
    ("sasl_mechanism", {**LOGIN, "sasl_mechanism": ""}),
    ("sasl_mechanism", {**LOGIN, "sasl_mechanism": "GSSAPI"}),
    ("sasl_username", {**LOGIN, "sasl_username": ""}),
    ("sasl_username", {**LOGIN, "sasl_username": 7}),
    ("sasl_username", {**LOGIN, "sasl_mechanism": "OAUTHBEARER"}),
    ("sasl_password", {**LOGIN, "sasl_password": ""}),
    ("sasl_password", {**LOGIN, "sasl_password": f"a\0{SECRET}"}),
    ("sasl_password", {**LOGIN, "sasl_password_file": "/dev/null"}),
    ("sasl_password_file", {**LOGIN, "sasl_password": "", "sasl_password_file": "/none"}),
    ("sasl_password_file", {**LOGIN, "sasl_password": "", "sasl_password_file": "/dev/null"}),
    ("sasl_token", {**LOGIN, "sasl_token": draw_token}),
    ("ssl_cafile", {**LOGIN, "ssl_cafile": "/nonexistent"}),
    ("ssl_cafile", {**LOGIN, "ssl_cafile": "/"}),
    ("ssl_cafile", {**LOGIN, "ssl_cafile": "/dev/null"}),
    ("ssl_key_password", {**LOGIN, "ssl_key_password": SECRET}),
    ("ssl_keyfile", {**LOGIN, "ssl_certfile": "/c"}),
    ("ssl_certfile", {**LOGIN, "ssl_keyfile": "/k"}),
    ("ssl_check_hostname", {**LOGIN, "ssl_check_hostname": "false"}),
    ("client_id", {**LOGIN, "client_id": ""}),
    ("client_id", {**LOGIN, "client_id": "two words"}),
]


@pytest.mark.parametrize(("field", "given"), REFUSED)
def test_contradiction_is_refused_and_its_field_named(field: str, given: dict[str, Any]) -> None:
    assert refused(**given).field == field


def test_no_text_shows_a_secret() -> None:
    config = KafkaConfig(**LOGIN)
    assert SECRET not in repr(config)
    assert SECRET not in str(config)
    assert "sasl_password='***'" in repr(config)
    assert SECRET not in str(list(config.__rich_repr__()))
    assert SECRET not in str(KafkaConfig.__rich_repr__)


def test_password_file_is_read_anew_without_its_line_break(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("one two \r\n")
    config = KafkaConfig(**{**LOGIN, "sasl_password": "", "sasl_password_file": str(file)})
    assert config.read_password() == "one two "
    file.write_text("three")
    assert config.read_password() == "three"
    file.unlink()
    with pytest.raises(SettingError):
        config.read_password()
    # Each client is made with the file as it is then: while it is replaced that is an outage.
    with pytest.raises(ConnectError, match="sasl_password_file"):
        connection_options(config, "test")
    file.write_text("four")
    assert connection_options(config, "test")["sasl_plain_password"] == "four"


def test_each_protocol_and_mechanism_has_a_config_that_is_right() -> None:
    for protocol in PROTOCOLS:
        for mechanism in MECHANISMS:
            given = {**LOGIN, "security_protocol": protocol, "sasl_mechanism": mechanism}
            if mechanism == "OAUTHBEARER":
                given = {
                    **given,
                    "sasl_username": "",
                    "sasl_password": "",
                    "sasl_token": draw_token,
                }
            if not protocol.startswith("SASL"):
                given = {"bootstrap_servers": "b:1", "security_protocol": protocol}
            config = KafkaConfig(**given)
            assert config.security_protocol == protocol


def tls(**given: Any) -> dict[str, Any]:
    return {"bootstrap_servers": "b:1", "security_protocol": "SSL", **given}


def test_own_certificate_with_its_key_is_taken(authority: Authority) -> None:
    files = authority.client("trader")
    config = KafkaConfig(**tls(ssl_certfile=str(files.certificate), ssl_keyfile=str(files.key)))
    assert config.tls_context() is not None


def test_key_of_another_certificate_is_refused(authority: Authority) -> None:
    ours, other = authority.client("trader"), authority.client("other")
    error = refused(**tls(ssl_certfile=str(ours.certificate), ssl_keyfile=str(other.key)))
    assert (error.field, error.expected) == ("ssl_keyfile", "the key of ssl_certfile")


@pytest.mark.parametrize(
    ("password", "field"), [("", "ssl_key_password"), ("wrong", "ssl_key_password")]
)
def test_encrypted_key_without_its_password_is_refused(
    authority: Authority, tmp_path: Path, password: str, field: str
) -> None:
    files = authority.client("trader")
    key = tmp_path / "key"
    key.write_text(pkcs8(files.key_text.encode(), SECRET))
    given = tls(ssl_certfile=str(files.certificate), ssl_keyfile=str(key))
    assert refused(**given, ssl_key_password=password).field == field
    KafkaConfig(**given, ssl_key_password=SECRET)


def test_files_exchanged_are_refused(authority: Authority) -> None:
    files = authority.client("trader")
    error = refused(**tls(ssl_certfile=str(files.key), ssl_keyfile=str(files.certificate)))
    assert error.field == "ssl_certfile"
    error = refused(**tls(ssl_certfile=str(files.certificate), ssl_keyfile=str(files.certificate)))
    assert error.field == "ssl_keyfile"
