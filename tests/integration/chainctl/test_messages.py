"""`chainctl messages`: what it refuses before it listens. The service is tested elsewhere."""

import hashlib
import json
from pathlib import Path

import pytest

from chain_kernel.errors import SettingError
from outbox.service.config import ServiceConfig
from tests.integration.chainctl.conftest import Call

SETTINGS = {
    "CHAINCTL_DATABASE": "postgresql://outbox_relay@127.0.0.1:1/none",
    "CHAINCTL_KAFKA": "127.0.0.1:1",
}
HASH = "0" * 64


def test_token_is_drawn_with_the_hash_that_the_file_holds(call: Call) -> None:
    drawn = [json.loads(call("messages", "token", "--json").out) for _ in range(2)]
    for each in drawn:
        assert hashlib.sha256(each["token"].encode()).hexdigest() == each["token_sha256"]
    assert drawn[0]["token"] != drawn[1]["token"]


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        (("--callback",), "--check-topic was ''"),
        (("--callback", "--check-topic", "c"), "--confirm-topic was ''"),
        (("--callback", "--check-topic", "c", "--confirm-topic", "d"), "--callback-database"),
        (("--check-topic", "c"), "--check-topic was 'c', expected --callback beside it"),
        (("--confirm-topic", "d"), "--confirm-topic was 'd', expected --callback beside it"),
        ((), "a server that listens at 127.0.0.1:1"),
        (("--port", "70000"), "70000"),
        (("--outbox-bytes-max", "1GiB"), "'1GiB', expected a size"),
        (("--host", "203.0.113.1"), "a server that listens"),
    ],
)
def test_bad_options_and_a_database_that_is_away_are_refused_in_one_line(
    call: Call, tmp_path: Path, options: tuple[str, ...], shown: str
) -> None:
    path = tmp_path / "clients.toml"
    path.write_text(f'[[client]]\nname = "a"\ntoken_sha256 = ["{HASH}"]\n')
    path.chmod(0o600)
    done = call("messages", "serve", "--clients", path, *options, settings=SETTINGS)
    assert (done.code, done.out) == (2, "")
    assert shown in done.err
    assert len(done.err.splitlines()) == 1


def test_rules_of_retention_are_those_of_the_services_relay(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[ServiceConfig] = []

    def make(config: ServiceConfig, *_: object, **__: object) -> None:
        made.append(config)
        raise SettingError("service", "made", "no more")

    monkeypatch.setattr("outbox.service.server.MessageService", make)
    path = tmp_path / "clients.toml"
    path.write_text(f'[[client]]\nname = "a"\ntoken_sha256 = ["{HASH}"]\n')
    path.chmod(0o600)
    rules = "--retention-hours", "14d", "--history-bytes-max", "1GB", "--outbox-bytes-max", "2GB"
    done = call("messages", "serve", "--clients", path, *rules, settings=SETTINGS)
    assert done.code == 2, done.err
    relay = made[0].relay
    assert relay.retention_seconds == 14 * 86_400
    assert (relay.history_bytes_max, relay.outbox_bytes_max) == (10**9, 2 * 10**9)
