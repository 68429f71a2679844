import json
import os
from collections.abc import Mapping
from pathlib import Path

import click
import pytest

from chain_kernel.clients.kafka_config import KafkaConfig
from chain_kernel.errors import SettingError
from chainctl.commands.chain.sequence import SEQUENCER_FIELDS, sequencer_config
from chainctl.main import main
from chainctl.settings import (
    SETTING_NAMES,
    Settings,
    SourcedSettings,
    has_flag,
    load_settings,
    shown,
    unknown_variables,
)
from sequencer import SequencerConfig

SECRET = "p%40ss:w"
DSN = "postgresql://user:p%40ss@host:5433/orders"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Each test runs in an empty folder of its own, so that no chainctl.toml is found by chance."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def loaded(
    *flags: str, variables: Mapping[str, str] | None = None, file: str | bytes | None = None
) -> SourcedSettings:
    """Return the settings of a call with these flags, CHAINCTL_ variables and chainctl.toml."""
    if file is not None:
        Path("chainctl.toml").write_bytes(file.encode() if isinstance(file, str) else file)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (variables or {}).items():
            patch.setenv(f"CHAINCTL_{name}", value)
        return load_settings(flags)


def refusal(
    *flags: str, variables: Mapping[str, str] | None = None, file: str | bytes | None = None
) -> str:
    with pytest.raises((SettingError, click.ClickException)) as refused:
        loaded(*flags, variables=variables, file=file)
    error = refused.value
    return error.format_message() if isinstance(error, click.ClickException) else str(error)


def test_settings_take_flag_then_variable_then_file_then_default() -> None:
    found = loaded(
        "--kafka", "flag:1",
        variables={"KAFKA": "variable:1", "STACK_DIR": "/variable", "QUEUE_BYTES": ""},
        file='kafka = "file:1"\nbatch_rows = 7\nstack_dir = "/file"\n',
    )  # fmt: skip
    assert {name: (getattr(found.settings, name), found.sources[name])
            for name in ("kafka", "stack_dir", "batch_rows", "queue_bytes", "log_level")} == {
        "kafka": ("flag:1", "--kafka"),
        "stack_dir": ("/variable", "CHAINCTL_STACK_DIR"),
        "batch_rows": (7, "chainctl.toml"),
        "queue_bytes": (32 * 2**20, "default"),  # an empty variable counts as not set
        "log_level": ("warning", "default"),
    }  # fmt: skip


def test_named_file_is_read_in_the_place_of_the_one_in_the_folder(folder: Path) -> None:
    (folder / "named.toml").write_text("batch_rows = 3\n")
    for found in (
        loaded("--config", "named.toml", file='kafka = "folder:1"\n'),
        loaded(variables={"CONFIG": "named.toml"}),
    ):
        assert (found.settings.kafka, found.settings.batch_rows) == ("", 3)
        assert found.config_path == "named.toml"


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ('kafka = "a:1"\nbatch_rows = = 3\n', "line 2"),
        (b'kafka = "a:1"\n\xff\n', "0xff"),
        (b"#" * (2 * 1024 * 1024), "more than 1048576 bytes"),
        ("databse = 'x'\n", "databse', expected database, most likely"),
        ("xyz = 'x'\n", "xyz', expected one of those that chainctl config show lists"),
        ("[database]\nurl = 'p%40ss:w'\n", "database in chainctl.toml was 'dict'"),
        ("kafka = " + "[" * 100_000, "TOML"),
        (f'database = "postgresql://u:{SECRET}@h/d\n', "TOML"),
        ("batch_rows = 'many'\n", "CHAINCTL_BATCH_ROWS"),
        ("batch_rows = true\n", "CHAINCTL_BATCH_ROWS"),
        ("connect_seconds = nan\n", "CHAINCTL_CONNECT_SECONDS"),
        ("log_level = 'loud'\n", "CHAINCTL_LOG_LEVEL"),
    ],
)
def test_file_with_a_fault_is_refused_without_showing_a_secret(
    text: str | bytes, part: str
) -> None:
    noted = refusal(file=text)
    assert part in noted
    assert SECRET not in noted


@pytest.mark.parametrize("path", ["missing.toml", "."])
def test_file_that_cannot_be_read_is_refused(path: str) -> None:
    assert "--config" in refusal("--config", path)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("lease_seconds", "5 weeks", "a time span such as"),
        ("connect_seconds", "nan", "a time span such as"),
        ("queue_bytes", "8MiB", "a size such as"),
        ("batch_rows", "many", "not a valid integer"),
        ("batch_rows", "\uff17", "not a valid integer"),
        ("key_window_rows", "1_000", "not a valid integer"),
        ("lease_seconds", "\u0665s", "expected a time span"),
        ("batch_bytes", "\u0665MB", "expected a size"),
        ("id_strategy", "tme", "'sequential', 'time'"),
        ("kafka_ssl_check_hostname", "perhaps", "not a valid boolean"),
    ],
)
def test_flag_or_variable_that_is_refused_is_named_with_its_value(
    name: str, text: str, expected: str
) -> None:
    flag, variable = "--" + name.replace("_", "-"), name.upper()
    for noted in (refusal(flag, text), refusal(variables={variable: text})):
        assert all(part in noted for part in (flag, variable, repr(text), expected)), noted


@pytest.mark.parametrize(
    ("field", "value"), [("batch_rows", 0), ("queue_bytes", 1_000), ("lease_seconds", 4e3)]
)
def test_value_out_of_bounds_is_refused_by_what_it_configures(field: str, value: float) -> None:
    settings = Settings(database=DSN, kafka="h:1", **{field: value})  # type: ignore[arg-type]
    with pytest.raises(SettingError, match=field):
        sequencer_config(settings, 1)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("batch_rows", "-1"),
        ("key_window_rows", "-1"),
        ("queue_bytes", "1KB"),
        ("stop_seconds", "0s"),
        ("kafka_security_protocol", "TLS"),
        ("kafka", "host"),
        ("database", "no url"),
        ("gap_database", "no url"),
        # One that answers may lag, or was replaced: no login writes there.
        *(
            (name, f"postgresql://u@{hosts}")
            for name in ("database", "callback_database")
            for hosts in ("one.example,two.example/d", "h/d?target_session_attrs=standby")
        ),
    ],
)
def test_what_a_start_refuses_is_refused_wherever_settings_are_looked_at(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(f"CHAINCTL_{name.upper()}", value)
    assert main(["config", "show"]) == 2
    shown_, error = capsys.readouterr()
    assert name in shown_
    assert f"{name} was " in error
    assert error.count("\n") == 1
    assert main(["doctor", "--json"]) == 1
    checks = json.loads(capsys.readouterr().out)
    judged = [each for each in checks if each["what"] == "settings"]
    assert [each["state"] for each in judged] == ["failed"]
    assert judged[0]["found"] == error.removeprefix("chainctl: ").strip()


def test_time_and_size_take_a_unit_wherever_they_are_set() -> None:
    for found in (
        loaded("--lease-seconds", "1500ms", "--queue-bytes", "8MB"),
        loaded(variables={"LEASE_SECONDS": "1.5", "QUEUE_BYTES": "8000000"}),
        loaded(file='lease_seconds = "1500ms"\nqueue_bytes = 8000000\n'),
    ):
        assert (found.settings.lease_seconds, found.settings.queue_bytes) == (1.5, 8 * 10**6)


def test_sequencer_gets_every_setting_of_its_own_and_has_the_same_defaults() -> None:
    settings = loaded("--database", DSN, "--kafka", "h:1").settings
    assert settings == Settings(database=DSN, kafka="h:1")
    config = sequencer_config(settings, 1)
    plain = SequencerConfig(chain_id=1, database=DSN, kafka="h:1")
    for name, field in SEQUENCER_FIELDS.items():
        made, default = (
            getattr(one if hasattr(one, field) else one.tuning, field) for one in (config, plain)
        )
        assert made == default == getattr(settings, name), name
    assert config.owner.endswith(f":{os.getpid()}")
    changed = Settings(database=DSN, kafka="h:1", owner="pit", kafka_at_start="optional")
    assert sequencer_config(changed, 1).owner == "pit"
    assert sequencer_config(changed, 1).tuning.kafka_at_start == "optional"


@pytest.mark.parametrize(
    "dsn",
    [
        "host=localhost password='secret",
        "host=localhost password=secret sslmode=strict",
        "mysql://h/d",
        "postgresql://u:secret@h:port/d",
        "postgresql://u:secret@[::1/d",
        "secret",
    ],
)
def test_database_that_is_no_url_is_refused_without_its_password(dsn: str) -> None:
    with pytest.raises(SettingError, match="database") as refused:
        Settings(database=dsn).database_dsn()
    assert "secret" not in str(refused.value)


def test_address_that_is_not_set_or_wrong_is_refused_by_its_setting() -> None:
    dsn = "postgresql://db.example/orders?sslmode=verify-full"
    for settings, text in (
        (Settings(), r"--database, CHAINCTL_DATABASE or chainctl\.toml"),
        (Settings(gap_database=(DSN, "standby")), "gap_database was"),
        (Settings(gap_database=(dsn,)), "sslrootcert of gap_database was '', expected a PEM"),
    ):
        with pytest.raises(SettingError, match=text):
            settings.gap_dsns()


def test_gap_and_audit_database_default_to_the_database() -> None:
    settings = Settings(database=DSN)
    assert settings.gap_dsns() == (settings.audit_dsn(),) == (DSN,)
    other = "postgresql:///orders?host=/run"
    assert Settings(database=DSN, gap_database=(other,)).gap_dsns() == (other,)


def test_several_gap_databases_keep_their_order_wherever_they_are_set() -> None:
    other = "postgresql://standby/d"
    for found in (
        loaded("--gap-database", other, "--gap-database", DSN),
        loaded(variables={"GAP_DATABASE": f" {other}\n{DSN} "}),
        loaded(file=f'gap_database = ["{other}", "{DSN}"]'),
        loaded(file=f'gap_database = "{other} {DSN}"'),
    ):
        assert found.settings.gap_dsns() == (other, DSN)
        assert set(found.settings.secrets()) == {"p%40ss", "p@ss"}
    hidden = f"{other} postgresql://user:***@host:5433/orders"
    assert shown("gap_database", found.settings.gap_database) == hidden


@pytest.mark.parametrize(
    ("dsn", "secrets", "hidden"),
    [
        (DSN, {"p%40ss", "p@ss"}, "postgresql://user:***@host:5433/orders"),
        ("postgresql://h/d?password=x", {"x"}, "postgresql://h/d?password=***"),
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
)
def test_database_is_taken_and_shown_without_its_password(
    dsn: str, secrets: set[str], hidden: str
) -> None:
    settings = loaded(variables={"DATABASE": dsn, "GAP_DATABASE": dsn}).settings
    assert settings.database_dsn() == dsn
    assert settings.gap_dsns() == (dsn,)
    assert secrets <= set(settings.secrets())
    assert shown("database", dsn) == hidden


def test_config_show_shows_spans_of_time_exactly(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "show", "--linger-seconds", "4ms", "--lease-seconds", "2.5s"]) == 0
    rows = dict(line.split()[:2] for line in capsys.readouterr().out.splitlines())
    names = ("linger_seconds", "lease_seconds", "heartbeat_seconds", "stop_seconds")
    assert [rows[name] for name in names] == ["0.004", "2.5", "0.25", "15"]


def test_unknown_variables_are_kept_apart_from_settings() -> None:
    environ = {"CHAINCTL_DATABSE": "x", "CHAINCTL_KAFKA": "h:1", "CHAINCTL_CONFIG": "f", "HOME": ""}
    assert unknown_variables(environ) == ["CHAINCTL_DATABSE"]


LOGIN = {
    "KAFKA": "kafka.example:9093",
    "KAFKA_SECURITY_PROTOCOL": "SASL_SSL",
    "KAFKA_SASL_MECHANISM": "PLAIN",
    "KAFKA_SASL_USERNAME": "relay",
    "KAFKA_SASL_PASSWORD": "sesame",
    "KAFKA_SSL_CHECK_HOSTNAME": "false",
    "KAFKA_CLIENT_ID": "trading",
}


def test_kafka_is_reached_by_all_of_its_settings() -> None:
    kafka = loaded(variables=LOGIN).settings.kafka_config()
    assert (kafka.security_protocol, kafka.sasl_mechanism) == ("SASL_SSL", "PLAIN")
    assert (kafka.sasl_username, kafka.sasl_password) == ("relay", "sesame")
    assert kafka.ssl_check_hostname is False
    assert kafka.client_id == "trading"
    for name in set(KafkaConfig.__struct_fields__) - {"bootstrap_servers", "sasl_token"}:
        assert getattr(Settings(), f"kafka_{name}") == getattr(KafkaConfig.of("k:1"), name)


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        *(
            ({"KAFKA": text}, "kafka")
            for text in ("", "host", ":1", "host:x", "host:0", "a:1,,b:2", "u:sesame@host:1")
        ),
        ({"KAFKA_SECURITY_PROTOCOL": "TLS"}, "kafka_security_protocol"),
        ({"KAFKA_SASL_MECHANISM": "GSSAPI"}, "kafka_sasl_mechanism"),
        ({"KAFKA_SASL_MECHANISM": "OAUTHBEARER"}, "kafka_sasl_mechanism"),
        ({"KAFKA_SASL_PASSWORD": ""}, "kafka_sasl_password"),
        ({"KAFKA_SASL_PASSWORD_FILE": "/nowhere"}, "kafka_sasl_password"),
        ({"KAFKA_SSL_CAFILE": "/nowhere"}, "kafka_ssl_cafile"),
        ({"KAFKA_SSL_KEYFILE": "/nowhere"}, "kafka_ssl_certfile"),
    ],
)
def test_setting_of_kafka_that_is_wrong_is_named_as_a_setting(
    changed: dict[str, str], field: str
) -> None:
    with pytest.raises(SettingError) as refused:
        loaded(variables=LOGIN | changed).settings.kafka_config()
    assert refused.value.field == field
    assert "sesame" not in str(refused.value)


@pytest.mark.parametrize("command", [["config", "show"], ["doctor"], ["doctor", "--json"]])
def test_login_given_as_a_broker_is_not_shown(
    capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    main([*command, "--kafka", "u:sesame/open@host:9092"])
    found = "".join(capsys.readouterr())
    assert "@host:9092" in found
    assert "sesame" not in found
    assert "open@" not in found


def test_whole_secrets_are_hidden_and_no_flag_takes_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = {"KAFKA_SASL_PASSWORD": "sesame", "KAFKA_SSL_KEY_PASSWORD": "open"}
    settings = loaded(variables={**given, "KAFKA": "u:anise/dill@host:9092"}).settings
    assert settings.secrets() == ("anise/dill", *sorted(given.values()))
    for name in map(str.lower, given):
        assert not has_flag(name)
        assert shown(name, getattr(settings, name)) == "***"
        assert main(["config", "show", "--" + name.replace("_", "-"), "secret-text"]) == 2
        assert "secret-text" not in capsys.readouterr().err
    assert [name for name in SETTING_NAMES if not has_flag(name)] == sorted(
        map(str.lower, given), key=SETTING_NAMES.index
    )


def test_config_show_needs_no_name_of_the_account(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container that runs under a number."""

    def nameless() -> str:
        raise KeyError("uid not found")

    monkeypatch.setattr("getpass.getuser", nameless)
    assert main(["config", "show"]) == 0, capsys.readouterr().err
