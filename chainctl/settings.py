"""The settings of `chainctl`, as one frozen value.

Each setting `some_name` comes from, in this order: the flag `--some-name`, the environment variable
`CHAINCTL_SOME_NAME`, the line `some_name = ...` of the TOML file, its default. The file is the one
named by `--config`, else by `CHAINCTL_CONFIG`, else `chainctl.toml` in the current folder, which
need not be there.
"""

from __future__ import annotations

import difflib
import os
import platform
import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, get_args, get_type_hints
from urllib.parse import unquote

import msgspec
from msgspec import Meta, Struct

from chain_kernel.clients.database_config import parse
from chain_kernel.config import mask_dsn
from chain_kernel.errors import SettingError
from chain_kernel.files import read_bounded
from chain_kernel.limits import BATCH_ROWS_MAX, FRAME_BYTES_MAX, FRAME_BYTES_MIN, PAYLOAD_BYTES_MAX
from chainctl.units import bytes_of, seconds_of, shown_span

if TYPE_CHECKING:
    from collections.abc import Mapping

    from chain_kernel.clients.kafka_config import KafkaConfig


_SECRETS: Final = ("password", "sslpassword")
_WRITTEN: Final = re.compile(r"://[^:@/?#]*:([^@/?#]+)@|password=([^&#\s]+)")
"""A password as a URL has it."""


def checked_dsn(name: str, value: str, ways: str) -> str:
    """Return `value` when it is a libpq URL, or libpq's keywords, that can be used.

    `ways` says how it can be set. Raises SettingError, which shows no password.
    """
    from chain_kernel.clients.database_config import DatabaseConfig

    if not value:
        raise SettingError(name, value, f"a PostgreSQL URL, by {ways}")
    try:
        DatabaseConfig.of(value)
    except SettingError as error:
        field = name if error.field == "database" else f"{error.field} of {name}"
        raise SettingError(field, error.value, error.expected) from None
    return value


def shown_dsn(dsn: str) -> str:
    """Return what may be shown of a text that names a database."""
    if "://" in dsn:
        return mask_dsn(dsn)
    shown = {name: "***" if name in _SECRETS else value for name, value in _parsed(dsn).items()}
    return " ".join(f"{name}={value}" for name, value in shown.items()) or mask_dsn(dsn)


def passwords(dsn: str) -> set[str]:
    """Return the passwords of a text, as they are written and as they are decoded."""
    found = {option: value for option, value in _parsed(dsn).items() if option in _SECRETS}
    written = {form for match in _WRITTEN.finditer(dsn) for form in match.groups() if form}
    return set(found.values()) | written | set(map(unquote, written))


def _parsed(dsn: str) -> dict[str, str]:
    try:
        return parse(dsn)
    except SettingError:
        return {}


ENVIRONMENT_PREFIX: Final = "CHAINCTL_"
CONFIG_VARIABLE: Final = "CHAINCTL_CONFIG"
DEFAULT_CONFIG: Final = "chainctl.toml"

CONFIG_BYTES_MAX: Final = 1024 * 1024
"""A config file is a page or two; something larger is some other file, and is not read."""

_DSN: Final[Mapping[str, Any]] = {"secret": "dsn"}
_DSNS: Final[Mapping[str, Any]] = {"secret": "dsn", "many": True}
_WHOLE: Final[Mapping[str, Any]] = {"secret": "whole"}
"""A secret from its first character to its last, which no flag takes: it would show in `ps`."""


class Settings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All settings of all commands; each command takes flags for those that it uses."""

    database: Annotated[
        str, Meta(description="PostgreSQL of the chain, as a libpq URL or keywords", extra={**_DSN})
    ] = ""
    gap_database: Annotated[
        tuple[str, ...],
        Meta(
            description="the same database with the read-only role, for fills; several servers in "
            "order of preference, standbys first and the primary last",
            extra={**_DSNS},
        ),
    ] = ()
    """URLs in one text are separated by blanks; several with keywords need a list in the file.
    Without it fills use `database`, with its rights."""
    audit_database: Annotated[
        str, Meta(description="the same database with the auditor's role", extra={**_DSN})
    ] = ""
    callback_database: Annotated[
        str, Meta(description="the callback service's own store, as a libpq URL", extra={**_DSN})
    ] = ""
    kafka: Annotated[str, Meta(description="Kafka's bootstrap servers, host:port,...")] = ""
    kafka_security_protocol: Annotated[
        str, Meta(description="PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL")
    ] = "PLAINTEXT"
    kafka_sasl_mechanism: Annotated[
        str, Meta(description="how to log in: PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512")
    ] = ""
    kafka_sasl_username: Annotated[str, Meta(description="user to log in as")] = ""
    kafka_sasl_password: Annotated[
        str, Meta(description="password of that user", extra={**_WHOLE})
    ] = ""
    kafka_sasl_password_file: Annotated[
        str, Meta(description="file that holds the password of that user")
    ] = ""
    kafka_ssl_cafile: Annotated[
        str, Meta(description="PEM file of the authorities that brokers' certificates come from")
    ] = ""
    """Without it, those of the system apply."""
    kafka_ssl_certfile: Annotated[str, Meta(description="PEM file of the client's certificate")] = (
        ""
    )
    kafka_ssl_keyfile: Annotated[
        str, Meta(description="PEM file of the key of the client's certificate")
    ] = ""
    kafka_ssl_key_password: Annotated[
        str, Meta(description="password of that key", extra={**_WHOLE})
    ] = ""
    kafka_ssl_check_hostname: Annotated[
        bool,
        Meta(description="whether a broker's certificate has to name the host (true or false)"),
    ] = True
    kafka_client_id: Annotated[
        str, Meta(description="how brokers name these clients, before each role's own name")
    ] = "orderchain"
    alert_webhook: Annotated[
        str,
        Meta(
            description="URL that gets a POST when messages become abnormal",
            max_length=4096,
            extra={**_WHOLE},
        ),
    ] = ""
    """It often holds a token. --alert-webhook-file reads it from a file."""
    stack_dir: Annotated[str, Meta(description="folder of the local stack")] = ""
    batch_rows: Annotated[
        int, Meta(ge=1, le=BATCH_ROWS_MAX, description="rows in one commit, at most")
    ] = 5_000
    """Larger batches commit faster and come back later: 5,000 rows take 15 to 30 ms here."""
    batch_bytes: Annotated[
        int,
        Meta(ge=PAYLOAD_BYTES_MAX, le=2**30, description="bytes of orders in one commit, at most"),
    ] = 8 * 2**20
    queue_bytes: Annotated[
        int,
        Meta(
            ge=PAYLOAD_BYTES_MAX,
            le=2**32,
            description="bytes of orders that may wait for a commit, before more are taken in",
        ),
    ] = 32 * 2**20
    frame_bytes: Annotated[
        int,
        Meta(
            ge=FRAME_BYTES_MIN, le=FRAME_BYTES_MAX, description="bytes of one Kafka record, at most"
        ),
    ] = 512 * 1024
    linger_seconds: Annotated[
        float, Meta(ge=0, le=1, description="how long the first order of a commit waits for others")
    ] = 0.0
    """A few milliseconds spare small commits where CPU is short."""
    key_window_rows: Annotated[
        int,
        Meta(
            ge=0,
            le=10**8,
            description="rows whose keys are remembered, so that a repeated order adds nothing; 0: "
            "keys are not compared",
        ),
    ] = 1_000_000
    """`verify --keys` and `retention` use it too: give it to every command of a chain."""
    name: Annotated[str, Meta(max_length=200, description="name of the leader, for operators")] = ""
    """Without it, the host and the number of the process."""
    lease_seconds: Annotated[
        float,
        Meta(ge=0.5, le=3600, description="how long a leader must be silent to count as dead"),
    ] = 5.0
    """A standby takes over this long after a leader dies. The deadline of a commit is below it."""
    id_strategy: Annotated[
        Literal["sequential", "time"],
        Meta(description="how ids rise: sequential, or time (an id shows the millisecond)"),
    ] = "sequential"
    """"time" needs a chain created with large partitions (--partition-ids)."""
    heartbeat_seconds: Annotated[
        float, Meta(gt=0, le=3600, description="idle time after which the head is published again")
    ] = 0.25
    """It bounds how long receivers do not notice that the last frame was lost."""
    kafka_at_start: Annotated[
        Literal["required", "optional"],
        Meta(
            description="whether a receiver, or the first sequencer of a chain, needs Kafka to "
            "start; if it is optional, a wrong address is only logged"
        ),
    ] = "required"
    when_kafka_is_away: Annotated[
        Literal["continue", "refuse"],
        Meta(description="whether orders are taken while Kafka is away; the database has them"),
    ] = "continue"
    kafka_away_seconds: Annotated[
        float, Meta(gt=0, le=3600, description="how long Kafka must be silent to count as away")
    ] = 10.0
    recover_seconds: Annotated[
        float, Meta(gt=0, le=3600, description="how long to retry while the database is away")
    ] = 60.0
    stop_seconds: Annotated[
        float, Meta(gt=0, le=3600, description="how long a stop may take to commit and publish")
    ] = 15.0
    connect_seconds: Annotated[
        float, Meta(gt=0, le=3600, description="how long to wait for a server that does not answer")
    ] = 10.0
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        Meta(description="what to log on stderr; debug adds tracebacks and the libraries' logs"),
    ] = "warning"
    log_format: Annotated[
        Literal["text", "json"],
        Meta(
            description="form of each line on stderr while a command runs that runs long: text, or "
            "json (one object per line)"
        ),
    ] = "text"

    def database_dsn(self) -> str:
        """Return the checked address of the chain's database. Raises SettingError."""
        return checked_dsn("database", self.database, _ways("database"))

    def gap_dsns(self) -> tuple[str, ...]:
        """Return the checked addresses for fills, the primary last; `database` without any."""
        ways = _ways("gap_database")
        checked = tuple(checked_dsn("gap_database", dsn, ways) for dsn in self.gap_database)
        return checked or (self.database_dsn(),)

    def audit_dsn(self) -> str:
        """Return the checked address for verification: `audit_database`, else `database`."""
        if not self.audit_database:
            return self.database_dsn()
        return checked_dsn("audit_database", self.audit_database, _ways("audit_database"))

    def callback_dsn(self) -> str:
        """Return the checked address of the callback service's store. Raises SettingError."""
        return checked_dsn("callback_database", self.callback_database, _ways("callback_database"))

    def kafka_config(self) -> KafkaConfig:
        """Return how to reach Kafka. Raises SettingError, which names the setting."""
        from chain_kernel.clients.kafka_config import KafkaConfig

        if not self.kafka:
            expected = f"Kafka's bootstrap servers, by {_ways('kafka')}"
            raise SettingError("kafka", self.kafka, expected)
        if self.kafka_sasl_mechanism == _TOKENS:
            expected = "PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512: tokens need a program of yours"
            raise SettingError("kafka_sasl_mechanism", self.kafka_sasl_mechanism, expected)
        given = {field: getattr(self, name) for name, field in _KAFKA_FIELDS.items()}
        try:
            return KafkaConfig(bootstrap_servers=self.kafka, **given)
        except SettingError as error:
            names = {field: name for name, field in _KAFKA_FIELDS.items()}
            raise SettingError(
                names.get(error.field, "kafka"), error.value, error.expected
            ) from None

    def secrets(self) -> tuple[str, ...]:
        """Return every password in these settings, so that no message ever shows one."""
        found: set[str] = set()
        for name in SETTING_NAMES:
            if is_secret(name):
                for value in _all_of(getattr(self, name)):
                    found |= passwords(value) if _secret_kind(name) == "dsn" else {value}
        return tuple(sorted(found))


SETTING_NAMES: Final = Settings.__struct_fields__

_OF_NO_CLIENT: Final = {"kafka_at_start", "kafka_away_seconds"}
_KAFKA_FIELDS: Final = {
    name: name.removeprefix("kafka_")
    for name in SETTING_NAMES
    if name.startswith("kafka_") and name not in _OF_NO_CLIENT
}
"""Kafka's settings other than the bootstrap servers, and their names in `KafkaConfig`."""

_TOKENS: Final = "OAUTHBEARER"

_HINTS: Final = {
    name: get_args(hint)
    for name, hint in get_type_hints(Settings, include_extras=True).items()
    if name in SETTING_NAMES
}
_METAS: Final = {name: meta for name, (_, meta, *_) in _HINTS.items()}

_KINDS: Final = {"int": "an integer", "float": "a number", "bool": "true or false", "str": "text"}
"""What msgspec calls types, in words."""


class SourcedSettings(Struct, frozen=True, kw_only=True):
    """Settings, and where each one came from."""

    settings: Settings
    sources: dict[str, str]
    """By name: `--kafka`, `CHAINCTL_KAFKA`, the path of the file, or `default`."""
    config_path: str | None
    """The TOML file that was read, None without one."""


def load_settings(
    flags: Mapping[str, str | None], environ: Mapping[str, str], config: str | None = None
) -> SourcedSettings:
    """Return the settings of one call of `chainctl`.

    `flags` holds the flags that were given, by setting; `config` is the value of `--config`.
    Raises SettingError, which names the setting as it was given.
    """
    path, table = _read_config(config, environ)
    values: dict[str, object] = {}
    sources: dict[str, str] = {}
    for name in SETTING_NAMES:
        source, raw = _first_given(name, flags, environ, str(path), table)
        sources[name] = source
        if source != "default":
            is_text = source != str(path)
            values[name] = _converted(name, raw, source, is_text=is_text)
    settings = Settings(**values)  # type: ignore[arg-type] # each value was converted to its type
    return SourcedSettings(
        settings=settings, sources=sources, config_path=None if path is None else str(path)
    )


def shown(name: str, value: object) -> object:
    """Return the value of a setting as it may be shown: passwords replaced."""
    if not is_secret(name):
        return value
    hide = shown_dsn if _secret_kind(name) == "dsn" else _hidden
    return " ".join(map(hide, _all_of(value)))


def is_secret(name: str) -> bool:
    """Return whether the setting may hold a password."""
    return bool(_secret_kind(name))


def _secret_kind(name: str) -> str:
    return str((_METAS[name].extra or {}).get("secret", ""))


def _hidden(_: str) -> str:
    return "***"


def name_of(settings: Settings) -> str:
    """Return the name by which a sequencer of this process leads."""
    return settings.name or f"{platform.node() or 'unknown'}:{os.getpid()}"


def has_flag(name: str) -> bool:
    """Return whether a flag may give the setting: what `ps` shows must not be secret."""
    return _secret_kind(name) != "whole"


def flagged(names: tuple[str, ...]) -> list[str]:
    """Return the settings whose flags a command has that uses `names`, each once."""
    wanted: dict[str, None] = {}
    for name in names:
        wanted |= dict.fromkeys([name, *(_KAFKA_FIELDS if name == "kafka" else ())])
    return [name for name in wanted if has_flag(name)]


def may_be_many(name: str) -> bool:
    """Return whether the setting takes several values, and its flag may be repeated."""
    return bool((_METAS[name].extra or {}).get("many"))


def description(name: str) -> str:
    """Return what the setting is, for help texts."""
    return _METAS[name].description or ""


def choices(name: str) -> tuple[str, ...]:
    """Return the only values that the setting takes; none where there are others."""
    return tuple(map(str, get_args(_HINTS[name][0]))) if not may_be_many(name) else ()


def form_of(name: str) -> str:
    """Return what a value of the setting looks like, for help texts."""
    kind = _HINTS[name][0]
    if name.endswith("_seconds"):
        return "SPAN"
    if name.endswith("_bytes"):
        return "SIZE"
    if kind is bool:
        return "true|false"
    return "|".join(choices(name)) or ("COUNT" if kind is int else "VALUE")


def default_of(name: str) -> str:
    """Return the default of a setting, for help texts; empty where it has none."""
    default = getattr(Settings(), name)
    if default in ("", ()):
        return ""
    if name.endswith("_seconds"):
        return shown_span(default)
    return str(default).lower() if isinstance(default, bool) else str(default)


def flag_of(name: str) -> str:
    """Return the flag of a setting."""
    return "--" + name.replace("_", "-")


def variable_of(name: str) -> str:
    """Return the environment variable of a setting."""
    return ENVIRONMENT_PREFIX + name.upper()


def unknown_variables(environ: Mapping[str, str]) -> list[str]:
    """Return the variables of our form that are no setting: most likely misspelt.

    `config show` shows them. They are not refused, since an orchestrator may set some of its own.
    """
    known = {variable_of(name) for name in SETTING_NAMES} | {CONFIG_VARIABLE}
    return sorted(
        name for name in environ if name.startswith(ENVIRONMENT_PREFIX) and name not in known
    )


def _first_given(
    name: str,
    flags: Mapping[str, str | None],
    environ: Mapping[str, str],
    path: str,
    table: Mapping[str, object],
) -> tuple[str, object]:
    """Return source and raw value of a setting. An empty variable counts as not set."""
    flag = flags.get(name)
    if flag is not None:
        return flag_of(name), flag
    variable = environ.get(variable_of(name))
    if variable:
        return variable_of(name), variable
    if name in table:
        return path, table[name]
    return "default", None


def _converted(name: str, raw: object, source: str, *, is_text: bool) -> object:
    """Return `raw` as the setting's type; text is read as a number only where it came as text."""
    if may_be_many(name) and isinstance(raw, str):
        raw = raw.split() if "://" in raw else [raw]  # a URL holds no blank, keywords do
    field = source if is_text else f"{name} in {source}"
    value = _measured(name, raw, field) if isinstance(raw, str) else raw
    try:
        return getattr(msgspec.convert({name: value}, Settings, strict=not is_text), name)
    except msgspec.ValidationError as error:
        shown = "a secret" if is_secret(name) else raw
        raise SettingError(field, shown, _expected(name, error)) from None


def _measured(name: str, text: str, field: str) -> object:
    """Return the seconds of a span, the bytes of a size, and any other text as it is.

    Raises SettingError.
    """
    if name.endswith("_seconds"):
        found, expected = seconds_of(text), "a time span such as 90s, 5m, 2h"
    elif name.endswith("_bytes"):
        found, expected = bytes_of(text), "a size such as 500KB, 8MB"
    else:
        return text
    if found is None:
        raise SettingError(field, text, expected)
    return found


def _expected(name: str, error: msgspec.ValidationError) -> str:
    """Return in words what the setting takes."""
    if choices(name):
        return " or ".join(choices(name))
    text = str(error).partition(" - at ")[0].partition(", got ")[0]
    kind, blank, rest = text.removeprefix("Expected ").replace("`", "").partition(" ")
    return f"{_KINDS.get(kind, kind)}{blank}{rest}"


def _read_config(
    config: str | None, environ: Mapping[str, str]
) -> tuple[Path | None, dict[str, object]]:
    """Return path and content of the config file; no path where there is none to read."""
    named, field = config, "--config"
    if named is None and environ.get(CONFIG_VARIABLE):
        named, field = environ[CONFIG_VARIABLE], CONFIG_VARIABLE
    if named is None:
        path, field = Path(DEFAULT_CONFIG), "config"
        if not path.is_file():
            return None, {}
    else:
        path = Path(named)
    table = _parse_config(path, field)
    _refuse_unknown(path, table)
    return path, table


def _parse_config(path: Path, field: str) -> dict[str, object]:
    """Return the content of a TOML file. It is never quoted: it may hold a password."""
    try:
        content = read_bounded(path, CONFIG_BYTES_MAX)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise SettingError(field, str(path), f"a readable TOML file: {reason}") from None
    try:
        return tomllib.loads(content.decode())
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise SettingError(field, str(path), f"UTF-8 text (see line {line})") from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise SettingError(field, str(path), f"valid TOML: {error}") from None


def _refuse_unknown(path: Path, table: Mapping[str, object]) -> None:
    for name in table:
        if name not in SETTING_NAMES:
            nearest = difflib.get_close_matches(name, SETTING_NAMES, n=1)
            hint = f"{nearest[0]}, most likely; or another" if nearest else "one"
            expected = f"{hint} of those that chainctl config show lists"
            raise SettingError(f"a setting in {path}", name, expected)


def _all_of(value: object) -> tuple[str, ...]:
    """Return the values of a setting that may have one or several."""
    if isinstance(value, tuple):
        return value
    return (str(value),) if value else ()


def _ways(name: str) -> str:
    return f"{flag_of(name)}, {variable_of(name)} or {DEFAULT_CONFIG}"
