from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from chain_kernel.clients.kafka_config import KafkaConfig
from chain_kernel.errors import SettingError
from chainctl.commands.chain.sequence import SEQUENCER_FIELDS, sequencer_config
from chainctl.main import main
from chainctl.settings import (
    SETTING_NAMES,
    Settings,
    description,
    flagged,
    has_flag,
    load_settings,
    shown,
    unknown_variables,
    variable_of,
)
from sequencer import SequencerConfig

if TYPE_CHECKING:
    from pathlib import Path

SECRET = "p%40ss:w"
DSN = "postgresql://user:p%40ss@host:5433/orders"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Each test runs in an empty folder of its own, so that no chainctl.toml is found by chance."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_settings_with_all_sources_take_flag_then_variable_then_file_then_default(
    folder: Path,
) -> None:
    (folder / "chainctl.toml").write_text('kafka = "file:1"\nbatch_rows = 7\nstack_dir = "/file"\n')
    environ = {"CHAINCTL_KAFKA": "variable:1", "CHAINCTL_STACK_DIR": "/variable"}
    found = load_settings({"kafka": "flag:1"}, environ)
    assert found.settings.kafka == "flag:1"
    assert found.settings.stack_dir == "/variable"
    assert found.settings.batch_rows == 7
    assert found.settings.log_level == "warning"
    assert found.sources["kafka"] == "--kafka"
    assert found.sources["stack_dir"] == "CHAINCTL_STACK_DIR"
    assert found.sources["batch_rows"] == "chainctl.toml"
    assert found.sources["log_level"] == "default"


def test_settings_with_a_named_file_do_not_read_the_one_in_the_folder(folder: Path) -> None:
    (folder / "chainctl.toml").write_text('kafka = "folder:1"\n')
    (folder / "named.toml").write_text("batch_rows = 3\n")
    assert load_settings({}, {}, "named.toml").settings.kafka == ""
    by_variable = load_settings({}, {"CHAINCTL_CONFIG": "named.toml"})
    assert by_variable.settings.batch_rows == 3
    assert by_variable.config_path == "named.toml"


def test_settings_with_an_empty_variable_count_it_as_not_set() -> None:
    assert load_settings({}, {"CHAINCTL_BATCH_ROWS": ""}).settings.batch_rows == 5_000


def test_every_setting_has_a_description_and_a_variable() -> None:
    for name in SETTING_NAMES:
        assert description(name)
        assert variable_of(name) == f"CHAINCTL_{name.upper()}"


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ('kafka = "a:1"\nbatch_rows = = 3\n', "line 2"),
        ("databse = 'x'\n", "databse', expected database, most likely"),
        ("xyz = 'x'\n", "xyz', expected one of those that chainctl config show lists"),
        ("batch_rows = '3'\n", "batch_rows"),
        ("batch_rows = 0\n", "batch_rows"),
        ("batch_rows = -1\n", "batch_rows"),
        ("batch_rows = 10000000000\n", "batch_rows"),
        ("batch_rows = true\n", "batch_rows"),
        ("connect_seconds = nan\n", "connect_seconds"),
        ("kafka = ['a:1']\n", "kafka"),
        ("log_level = 'loud'\n", "log_level"),
        ("[database]\nurl = 'x'\n", "database"),
        ("kafka = " + "[" * 100_000, "valid TOML"),
    ],
)
def test_config_file_with_a_fault_is_refused_by_name(folder: Path, text: str, part: str) -> None:
    (folder / "chainctl.toml").write_text(text)
    with pytest.raises(SettingError, match=part) as refused:
        load_settings({}, {})
    assert "chainctl.toml" in str(refused.value)


def test_config_file_with_bytes_that_are_no_text_is_refused_with_the_line(folder: Path) -> None:
    (folder / "chainctl.toml").write_bytes(b'kafka = "a:1"\n\xff\n')
    with pytest.raises(SettingError, match="line 2"):
        load_settings({}, {})


def test_config_file_that_is_too_large_is_refused_unread(folder: Path) -> None:
    (folder / "big.toml").write_bytes(b"#" * (2 * 1024 * 1024))
    with pytest.raises(SettingError, match="more than 1048576 bytes"):
        load_settings({}, {}, "big.toml")


@pytest.mark.parametrize("path", ["missing.toml", ".", "a\0b"])
def test_config_file_that_cannot_be_read_is_refused(path: str) -> None:
    with pytest.raises(SettingError, match="--config"):
        load_settings({}, {}, path)


def test_config_file_with_a_fault_never_shows_what_it_says(folder: Path) -> None:
    (folder / "chainctl.toml").write_text(f'database = "postgresql://u:{SECRET}@h/d\n')
    with pytest.raises(SettingError) as refused:
        load_settings({}, {})
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize(
    ("flags", "environ", "field"),
    [
        ({"batch_rows": "many"}, {}, "--batch-rows"),
        ({"batch_rows": "1.5"}, {}, "--batch-rows"),
        ({"connect_seconds": "nan"}, {}, "--connect-seconds"),
        ({}, {"CHAINCTL_BATCH_ROWS": "0"}, "CHAINCTL_BATCH_ROWS"),
        ({}, {"CHAINCTL_LOG_LEVEL": "loud"}, "CHAINCTL_LOG_LEVEL"),
    ],
)
def test_setting_of_the_wrong_type_is_refused_as_it_was_given(
    flags: dict[str, str | None], environ: dict[str, str], field: str
) -> None:
    with pytest.raises(SettingError) as refused:
        load_settings(flags, environ)
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("text", "seconds", "size"),
    [("5s", 5.0, 8 * 10**6), ("1500ms", 1.5, 8 * 10**6), ("1m", 60.0, 8 * 10**6), ("7", 7.0, None)],
)
def test_setting_of_time_or_size_takes_a_unit_wherever_it_is_set(
    folder: Path, text: str, seconds: float, size: int | None
) -> None:
    bytes_text = "8MB" if size else "300000"
    by_flag = load_settings({"lease_seconds": text, "queue_bytes": bytes_text}, {})
    environ = {"CHAINCTL_LEASE_SECONDS": text, "CHAINCTL_QUEUE_BYTES": bytes_text}
    by_variable = load_settings({}, environ)
    (folder / "c.toml").write_text(f'lease_seconds = "{text}"\nqueue_bytes = "{bytes_text}"\n')
    by_file = load_settings({}, {}, "c.toml")
    for found in (by_flag, by_variable, by_file):
        assert found.settings.lease_seconds == seconds
        assert found.settings.queue_bytes == (size or 300_000)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("lease_seconds", "5 weeks", "a time span such as"),
        ("lease_seconds", "100ms", "a number >= 0.5"),
        ("queue_bytes", "8MiB", "a size such as"),
        ("queue_bytes", "1KB", "an integer >= 262144"),
        ("batch_rows", "many", "an integer"),
        ("id_strategy", "tme", "sequential or time"),
        ("kafka_ssl_check_hostname", "perhaps", "true or false"),
    ],
)
def test_setting_that_is_refused_says_in_words_what_it_takes(
    name: str, text: str, expected: str
) -> None:
    with pytest.raises(SettingError) as refused:
        load_settings({name: text}, {})
    assert refused.value.expected.startswith(expected)
    assert refused.value.value == text


def test_sequencer_gets_every_setting_of_its_own_and_has_the_same_defaults() -> None:
    settings = Settings(database=DSN, kafka="h:1")
    config = sequencer_config(settings, 1)
    plain = SequencerConfig(chain_id=1, database=DSN, kafka="h:1")
    for name, field in SEQUENCER_FIELDS.items():
        made, default = (
            getattr(one if hasattr(one, field) else one.tuning, field) for one in (config, plain)
        )
        assert made == default == getattr(settings, name), name
    assert config.name.endswith(f":{os.getpid()}")
    changed = Settings(database=DSN, kafka="h:1", name="pit", kafka_at_start="optional")
    assert sequencer_config(changed, 1).name == "pit"
    assert sequencer_config(changed, 1).tuning.kafka_at_start == "optional"


@pytest.mark.parametrize(
    "dsn",
    [
        "host=localhost password='secret",
        "host=localhost password=secret sslmode=strict",
        "mysql://h/d",
        "postgresql://u:secret@h:port/d",
        "postgresql://u:secret@h:70000/d",
        "postgresql://u:secret@[::1/d",
        "secret",
    ],
)
def test_database_that_is_no_url_is_refused_without_its_password(dsn: str) -> None:
    with pytest.raises(SettingError, match="database") as refused:
        Settings(database=dsn).database_dsn()
    assert "secret" not in str(refused.value)


def test_database_that_is_not_set_is_refused_with_the_ways_to_set_it() -> None:
    with pytest.raises(SettingError, match=r"--database, CHAINCTL_DATABASE or chainctl\.toml"):
        Settings().database_dsn()


def test_gap_and_audit_database_default_to_the_database() -> None:
    settings = Settings(database=DSN)
    assert settings.gap_dsns() == (settings.audit_dsn(),) == (DSN,)
    other = "postgresql:///orders?host=/run"
    assert Settings(database=DSN, gap_database=(other,)).gap_dsns() == (other,)


@pytest.mark.parametrize(
    ("flags", "environ", "text"),
    [
        ({"gap_database": f"postgresql://standby/d {DSN}"}, {}, ""),
        ({}, {"CHAINCTL_GAP_DATABASE": f" postgresql://standby/d\n{DSN} "}, ""),
        ({}, {}, f'gap_database = ["postgresql://standby/d", "{DSN}"]'),
        ({}, {}, f'gap_database = "postgresql://standby/d {DSN}"'),
    ],
    ids=["flag", "variable", "list", "text"],
)
def test_several_gap_databases_keep_their_order_wherever_they_are_set(
    folder: Path, flags: dict[str, str | None], environ: dict[str, str], text: str
) -> None:
    (folder / "chainctl.toml").write_text(text)
    settings = load_settings(flags, environ).settings
    assert settings.gap_dsns() == ("postgresql://standby/d", DSN)
    assert set(settings.secrets()) == {"p%40ss", "p@ss"}
    hidden = "postgresql://standby/d postgresql://user:***@host:5433/orders"
    assert shown("gap_database", settings.gap_database) == hidden


def test_one_of_several_gap_databases_that_is_no_url_is_refused_by_name() -> None:
    with pytest.raises(SettingError, match="gap_database was"):
        Settings(gap_database=(DSN, "standby")).gap_dsns()


@pytest.mark.parametrize("servers", ["", "host", "host:", ":1", "host:x", "host:0", "a:1,,b:2"])
def test_kafka_that_is_no_list_of_servers_is_refused(servers: str) -> None:
    with pytest.raises(SettingError, match="kafka was"):
        Settings(kafka=servers).kafka_config()


def test_secrets_hold_a_password_as_written_and_as_meant() -> None:
    assert set(Settings(database=DSN).secrets()) == {"p%40ss", "p@ss"}
    assert Settings(database="postgresql://h/d?password=x").secrets() == ("x",)


@pytest.mark.parametrize(
    ("dsn", "secrets", "hidden"),
    [
        (
            "postgresql://u:p%40ss@a:1,b:2/d?target_session_attrs=read-write",
            {"p%40ss", "p@ss"},
            "postgresql://u:***@a:1,b:2/d?target_session_attrs=read-write",
        ),
        (
            "host=a,b port=1,2 user=u password='it\\'s one' dbname=d",
            {"it's one"},
            "host=a,b port=1,2 user=u password=*** dbname=d",
        ),
    ],
    ids=["URL", "keywords"],
)
def test_database_of_several_hosts_is_taken_and_shown_without_its_password(
    dsn: str, secrets: set[str], hidden: str
) -> None:
    settings = load_settings({}, {"CHAINCTL_DATABASE": dsn, "CHAINCTL_GAP_DATABASE": dsn}).settings
    assert settings.database_dsn() == dsn
    assert settings.gap_dsns() == (dsn,)
    assert secrets <= set(settings.secrets())
    assert shown("database", dsn) == hidden


def test_what_is_wrong_with_a_database_is_said_of_the_setting() -> None:
    dsn = "postgresql://db.example/orders?sslmode=verify-full"
    with pytest.raises(SettingError, match=r"sslrootcert of gap_database was '', expected a PEM"):
        Settings(gap_database=(dsn,)).gap_dsns()


def test_config_show_shows_spans_of_time_exactly(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "show", "--linger-seconds", "4ms", "--lease-seconds", "2.5s"]) == 0
    rows = dict(line.split()[:2] for line in capsys.readouterr().out.splitlines())
    names = ("linger_seconds", "lease_seconds", "heartbeat_seconds", "stop_seconds")
    assert [rows[name] for name in names] == ["0.004", "2.5", "0.25", "15"]


def test_shown_value_of_a_database_hides_the_password() -> None:
    assert shown("database", DSN) == "postgresql://user:***@host:5433/orders"
    assert shown("kafka", "h:1") == "h:1"


def test_unknown_variables_are_kept_apart_from_settings() -> None:
    environ = {"CHAINCTL_DATABSE": "x", "CHAINCTL_KAFKA": "h:1", "CHAINCTL_CONFIG": "f", "HOME": ""}
    assert unknown_variables(environ) == ["CHAINCTL_DATABSE"]


def test_webhook_of_alerts_is_hidden_whole_and_known_as_a_secret() -> None:
    url = "https://alerts.example/hook/T0KEN"
    sourced = load_settings({}, {"CHAINCTL_ALERT_WEBHOOK": url})
    assert sourced.settings.alert_webhook == url
    assert sourced.settings.secrets() == (url,)
    assert shown("alert_webhook", url) == "***"


LOGIN = {
    "CHAINCTL_KAFKA": "kafka.example:9093",
    "CHAINCTL_KAFKA_SECURITY_PROTOCOL": "SASL_SSL",
    "CHAINCTL_KAFKA_SASL_MECHANISM": "PLAIN",
    "CHAINCTL_KAFKA_SASL_USERNAME": "relay",
    "CHAINCTL_KAFKA_SASL_PASSWORD": "sesame",
    "CHAINCTL_KAFKA_SSL_CHECK_HOSTNAME": "false",
    "CHAINCTL_KAFKA_CLIENT_ID": "trading",
}


def test_kafka_is_reached_by_all_of_its_settings() -> None:
    kafka = load_settings({}, LOGIN).settings.kafka_config()
    assert (kafka.security_protocol, kafka.sasl_mechanism) == ("SASL_SSL", "PLAIN")
    assert (kafka.sasl_username, kafka.sasl_password) == ("relay", "sesame")
    assert kafka.ssl_check_hostname is False
    assert kafka.client_id == "trading"


def test_every_field_of_a_kafka_config_but_the_token_has_a_setting() -> None:
    fields = set(KafkaConfig.__struct_fields__) - {"bootstrap_servers", "sasl_token"}
    settings = set(flagged(("kafka",))) | {n for n in SETTING_NAMES if not has_flag(n)}
    assert {n.removeprefix("kafka_") for n in settings if n.startswith("kafka_")} == fields
    for name in fields:
        assert getattr(Settings(), f"kafka_{name}") == getattr(KafkaConfig.of("k:1"), name)


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"CHAINCTL_KAFKA": "kafka.example"}, "kafka"),
        ({"CHAINCTL_KAFKA_SECURITY_PROTOCOL": "TLS"}, "kafka_security_protocol"),
        ({"CHAINCTL_KAFKA_SASL_MECHANISM": "GSSAPI"}, "kafka_sasl_mechanism"),
        ({"CHAINCTL_KAFKA_SASL_MECHANISM": "OAUTHBEARER"}, "kafka_sasl_mechanism"),
        ({"CHAINCTL_KAFKA_SASL_PASSWORD": ""}, "kafka_sasl_password"),
        ({"CHAINCTL_KAFKA_SASL_PASSWORD_FILE": "/nowhere"}, "kafka_sasl_password"),
        ({"CHAINCTL_KAFKA_SSL_CAFILE": "/nowhere"}, "kafka_ssl_cafile"),
        ({"CHAINCTL_KAFKA_SSL_KEYFILE": "/nowhere"}, "kafka_ssl_certfile"),
    ],
)
def test_setting_of_kafka_that_is_wrong_is_named_as_a_setting(
    changed: dict[str, str], field: str
) -> None:
    settings = load_settings({}, LOGIN | changed).settings
    with pytest.raises(SettingError) as refused:
        settings.kafka_config()
    assert refused.value.field == field
    assert "sesame" not in str(refused.value)


def test_secrets_of_kafka_are_hidden_whole_and_have_no_flag() -> None:
    environ = LOGIN | {"CHAINCTL_KAFKA_SSL_KEY_PASSWORD": "open"}
    settings = load_settings({}, environ).settings
    assert set(settings.secrets()) == {"sesame", "open"}
    for name in ("kafka_sasl_password", "kafka_ssl_key_password", "alert_webhook"):
        assert shown(name, getattr(settings, name) or "x") == "***"
        assert not has_flag(name)
    flags = flagged(("kafka", "connect_seconds"))
    assert flags[:2] == ["kafka", "kafka_security_protocol"]
    assert "kafka_sasl_password" not in flags
    assert "kafka_sasl_password_file" in flags
