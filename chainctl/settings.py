"""The settings of `chainctl`: options of click, read by it, and one frozen value of them.

Each setting `some_name` comes from, in this order: the flag `--some-name`, the environment variable
`CHAINCTL_SOME_NAME`, the line `some_name = ...` of the TOML file, its default. The file is the one
named by `--config`, else by `CHAINCTL_CONFIG`, else `chainctl.toml` in the current folder, which
need not be there.
"""

from __future__ import annotations

import difflib
import os
import platform
import tomllib
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal
from urllib.parse import unquote

import click
from click.core import ParameterSource
from msgspec import Struct

from chain_kernel.clients.database_config import parse
from chain_kernel.errors import SettingError
from chain_kernel.files import read_bounded
from chain_kernel.masks import mask_dsn, masked, written_passwords
from chainctl.units import Integer, Size, Span, shown_span

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from chain_kernel.clients.kafka_config import KafkaConfig


class Settings(Struct, frozen=True, kw_only=True):
    """All settings of all commands; each command takes flags for those that it uses."""

    database: str = ""
    gap_database: tuple[str, ...] = ()
    audit_database: str = ""
    callback_database: str = ""
    kafka: str = ""
    kafka_security_protocol: str = "PLAINTEXT"
    kafka_sasl_mechanism: str = ""
    kafka_sasl_username: str = ""
    kafka_sasl_password: str = ""
    kafka_sasl_password_file: str = ""
    kafka_ssl_cafile: str = ""
    kafka_ssl_certfile: str = ""
    kafka_ssl_keyfile: str = ""
    kafka_ssl_key_password: str = ""
    kafka_ssl_check_hostname: bool = True
    kafka_client_id: str = "orderchain"
    stack_dir: str = ""
    batch_rows: int = 5_000
    batch_bytes: int = 8 * 2**20
    queue_bytes: int = 32 * 2**20
    frame_bytes: int = 512 * 1024
    linger_seconds: float = 0.0
    key_window_rows: int = 1_000_000
    owner: str = ""
    lease_seconds: float = 5.0
    id_strategy: Literal["sequential", "time"] = "sequential"
    heartbeat_seconds: float = 0.25
    kafka_at_start: Literal["required", "optional"] = "required"
    when_kafka_is_away: Literal["continue", "refuse"] = "continue"
    kafka_away_seconds: float = 10.0
    recover_seconds: float = 60.0
    stop_seconds: float = 15.0
    connect_seconds: float = 10.0
    log_level: Literal["debug", "info", "warning", "error"] = "warning"
    log_format: Literal["text", "json"] = "text"

    def database_dsn(self) -> str:
        """Return the checked address of the chain's database. Raises SettingError."""
        return checked_dsn("database", self.database)

    def gap_dsns(self) -> tuple[str, ...]:
        """Return the checked addresses for fills, the primary last; `database` without any."""
        checked = tuple(checked_dsn("gap_database", dsn) for dsn in self.gap_database)
        return checked or (self.database_dsn(),)

    def audit_dsn(self) -> str:
        """Return the checked address for verification: `audit_database`, else `database`."""
        given = self.audit_database
        return checked_dsn("audit_database", given) if given else self.database_dsn()

    def callback_dsn(self) -> str:
        """Return the checked address of the callback service's store. Raises SettingError."""
        return checked_dsn("callback_database", self.callback_database)

    def kafka_config(self) -> KafkaConfig:
        """Return how to reach Kafka. Raises SettingError, which names the setting."""
        from chain_kernel.clients.kafka_config import KafkaConfig

        if not self.kafka:
            raise SettingError("kafka", "", f"Kafka's bootstrap servers, by {_ways('kafka')}")
        if self.kafka_sasl_mechanism == _TOKENS:
            expected = "PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512: tokens need a program of yours"
            raise SettingError("kafka_sasl_mechanism", self.kafka_sasl_mechanism, expected)
        given = {field: getattr(self, name) for name, field in _KAFKA_FIELDS.items()}
        with named_as_settings({"kafka": "bootstrap_servers", **_KAFKA_FIELDS}):
            return KafkaConfig(bootstrap_servers=self.kafka, **given)

    def broker(self) -> KafkaConfig | None:
        """Return how to reach Kafka; None where no address is given: a chain needs none.

        Raises SettingError where other settings of Kafka are given without it.
        """
        if self.kafka:
            return self.kafka_config()
        for name in _KAFKA_FIELDS:
            if getattr(self, name) != getattr(Settings(), name):
                raise SettingError("kafka", "", f"Kafka's servers, since {name} is set")
        return None

    def secrets(self) -> tuple[str, ...]:
        """Return every password in these settings, so that no message ever shows one."""
        found = {text for name in _WHOLE for text in (getattr(self, name),) if text}
        for name in (*_DSNS, "kafka"):
            for dsn in _all_of(getattr(self, name)):
                found |= passwords(dsn)
        return tuple(sorted(found))


SETTING_NAMES: Final = Settings.__struct_fields__
ENVIRONMENT_PREFIX: Final = "CHAINCTL_"
CONFIG_VARIABLE: Final = "CHAINCTL_CONFIG"
DEFAULT_CONFIG: Final = "chainctl.toml"
CONFIG_BYTES_MAX: Final = 1024 * 1024
"""A config file is a page or two; something larger is some other file, and is not read."""

_DSNS: Final = ("database", "gap_database", "audit_database", "callback_database")
_WHOLE: Final = ("kafka_sasl_password", "kafka_ssl_key_password")
"""Secrets from the first character to the last, which no flag takes: it would show in `ps`."""

_KAFKA_FIELDS: Final = {
    name: name.removeprefix("kafka_")
    for name in SETTING_NAMES
    if name.startswith("kafka_") and name not in {"kafka_at_start", "kafka_away_seconds"}
}
"""Kafka's settings other than the bootstrap servers, and their names in `KafkaConfig`."""

_TOKENS: Final = "OAUTHBEARER"


class _Databases(click.ParamType):  # type: ignore[type-arg] # generic only in new versions
    """Several addresses in one text: a URL holds no blank, keywords do."""

    name = "text"

    def split_envvar_value(self, rv: str) -> list[str]:
        """Return the addresses of a variable."""
        return rv.split() if "://" in rv else [rv]


# Bounds are those of the configs that the settings become.
_SPAN: Final = Span(3_600, may_be_zero=True)
_HELP: Final[Mapping[str, tuple[click.ParamType | None, str]]] = {  # type: ignore[type-arg]
    "database": (None, "PostgreSQL of the chain, as a libpq URL or keywords."),
    "gap_database": (
        _Databases(),
        "The same database with the read-only role, for fills: standbys first, the primary last.",
    ),
    "audit_database": (None, "The same database with the auditor's role."),
    "callback_database": (None, "The callback service's own store, as a libpq URL."),
    "kafka": (None, "Kafka's bootstrap servers, host:port,..."),
    "kafka_security_protocol": (None, "PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL."),
    "kafka_sasl_mechanism": (None, "How to log in: PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512."),
    "kafka_sasl_username": (None, "User to log in as."),
    "kafka_sasl_password": (None, "Password of that user."),
    "kafka_sasl_password_file": (click.Path(), "File that holds the password of that user."),
    "kafka_ssl_cafile": (click.Path(), "PEM file of the authorities of brokers' certificates."),
    "kafka_ssl_certfile": (click.Path(), "PEM file of the client's certificate."),
    "kafka_ssl_keyfile": (click.Path(), "PEM file of the key of the client's certificate."),
    "kafka_ssl_key_password": (None, "Password of that key."),
    "kafka_ssl_check_hostname": (
        click.BOOL,
        "Whether a broker's certificate has to name the host (true or false).",
    ),
    "kafka_client_id": (None, "How brokers name these clients, before each role's own name."),
    "stack_dir": (click.Path(), "Folder of the local stack."),
    "batch_rows": (Integer(), "Rows in one commit, at most."),
    "batch_bytes": (Size(), "Bytes of orders in one commit, at most."),
    "queue_bytes": (Size(), "Bytes of orders that may wait for a commit."),
    "frame_bytes": (Size(), "Bytes of one Kafka record, at most."),
    "linger_seconds": (_SPAN, "How long the first order of a commit waits for others."),
    "key_window_rows": (
        Integer(),
        "Rows whose keys are remembered, so that a repeated order adds nothing; 0: keys are not "
        "compared.",
    ),
    "owner": (None, "Who leads, as operators see it.  [default: host and process]"),
    "lease_seconds": (_SPAN, "How long a leader must be silent to count as dead."),
    "id_strategy": (
        click.Choice(["sequential", "time"]),
        "How ids rise; time: an id shows the millisecond.",
    ),
    "heartbeat_seconds": (_SPAN, "Idle time after which the head is published again."),
    "kafka_at_start": (
        click.Choice(["required", "optional"]),
        "Whether a receiver, or the first sequencer of a chain, needs Kafka to start.",
    ),
    "when_kafka_is_away": (
        click.Choice(["continue", "refuse"]),
        "Whether orders are taken while Kafka is away; the database has them.",
    ),
    "kafka_away_seconds": (_SPAN, "How long Kafka must be silent to count as away."),
    "recover_seconds": (_SPAN, "How long to retry while the database is away."),
    "stop_seconds": (_SPAN, "How long a stop may take to commit and publish."),
    "connect_seconds": (Span(3_600), "How long to wait for a server that does not answer."),
    "log_level": (
        click.Choice(["debug", "info", "warning", "error"]),
        "What to log on stderr; debug adds tracebacks and the libraries' logs.",
    ),
    "log_format": (click.Choice(["text", "json"]), "Form of each line on stderr."),
}


# -- as options of a command -----------------------------------------------------------------------

SETTING: Final = "setting_"
"""The prefix of parameters that are settings."""

DEMO: Final = "chainctl.demo"
"""The key, in click's context, for settings that come before variables: the last demo's."""


class _Unflagged(click.Option):
    """A setting for which the command has no flag: the variable or the file gives it."""

    def __init__(self, declared: Sequence[str], **given: Any) -> None:  # noqa: ANN401 - click's own
        super().__init__(declared, **given, hidden=True)
        self.opts, self.secondary_opts = [], []

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:  # noqa: ANN401 - click's own
        """Add nothing."""

    def get_error_hint(self, ctx: click.Context | None) -> str:
        """Return the names of the setting and of its variable."""
        return f"{str(self.name).removeprefix(SETTING)!r} (env var: {self.envvar!r})"


def setting_options(names: Sequence[str]) -> list[click.Option]:
    """Return `--config` and all settings; those of `names`, and the log's level, have flags.

    With `kafka` come all settings of its clients.
    """
    wanted = {*names, "log_level", *(_KAFKA_FIELDS if "kafka" in names else ())} - {*_WHOLE}
    config = click.Option(
        ["--config", f"{SETTING}config"], type=click.Path(), metavar="FILE", is_eager=True,
        envvar=CONFIG_VARIABLE, show_envvar=True, callback=_read_config,
        help=f"TOML file with settings.  [default: ./{DEFAULT_CONFIG}]",
    )  # fmt: skip
    return [config, *(_option(name, has_flag=name in wanted) for name in SETTING_NAMES)]


def _option(name: str, *, has_flag: bool) -> click.Option:
    kind, text = _HELP[name]
    default = getattr(Settings(), name)
    is_many = isinstance(default, tuple)
    shown = default not in ("", ())
    made = click.Option if has_flag else _Unflagged
    return made(
        [flag_of(name), SETTING + name], type=kind, multiple=is_many,
        default=shown_span(default) if isinstance(kind, Span) else default,
        envvar=variable_of(name), show_envvar=True, show_default=shown,
        help=text + " May be repeated." * is_many,
        metavar=_METAVARS.get(type(kind).__name__),
    )  # fmt: skip


_METAVARS: Final = {"Span": "SPAN", "Size": "SIZE", "Integer": "COUNT"}


class SourcedSettings(Struct, frozen=True, kw_only=True):
    """Settings, and where each one came from."""

    settings: Settings
    sources: dict[str, str]
    """By name: `--kafka`, `CHAINCTL_KAFKA`, the path of the file, or `default`."""
    config_path: str | None
    """The TOML file that was read, None without one."""


def settings_in(context: click.Context) -> SourcedSettings:
    """Return the settings of the command that click has read."""
    path = context.meta.get(CONFIG_PATH)
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    demo = context.meta.get(DEMO, {})
    for name in SETTING_NAMES:
        values[name] = context.params[SETTING + name]
        source = context.get_parameter_source(SETTING + name)
        if name in demo and source is not ParameterSource.COMMANDLINE:
            values[name], sources[name] = demo[name], "--demo"
        elif source is ParameterSource.COMMANDLINE:
            sources[name] = flag_of(name)
        elif source is ParameterSource.ENVIRONMENT:
            sources[name] = variable_of(name)
        else:
            sources[name] = str(path) if source is ParameterSource.DEFAULT_MAP else "default"
    return SourcedSettings(settings=Settings(**values), sources=sources, config_path=path)


def load_settings(arguments: Sequence[str] = ()) -> SourcedSettings:
    """Return the settings that a command has which is called with these `arguments`."""
    command = click.Command("settings", params=[*setting_options(SETTING_NAMES)])
    with command.make_context("chainctl", list(arguments)) as context:
        return settings_in(context)


CONFIG_PATH: Final = "chainctl.config_path"
"""The key, in click's context, for the path of the file that was read."""


def _read_config(context: click.Context, _: click.Parameter, named: str | None) -> None:
    """Make the lines of the TOML file the defaults of the settings. Raises SettingError."""
    if context.resilient_parsing or (named is None and not Path(DEFAULT_CONFIG).is_file()):
        return
    path = named or DEFAULT_CONFIG
    table = _parsed_config(Path(path), "config" if named is None else "--config")
    for name in table:
        if name not in SETTING_NAMES:
            nearest = difflib.get_close_matches(name, SETTING_NAMES, n=1)
            hint = f"{nearest[0]}, most likely; or another" if nearest else "one"
            expected = f"{hint} of those that chainctl config show lists"
            raise SettingError(f"a setting in {path}", name, expected)
    context.meta[CONFIG_PATH] = path
    texts = {SETTING + name: _texts(name, value, path) for name, value in table.items()}
    context.default_map = texts | dict(context.default_map or {})


def _parsed_config(path: Path, field: str) -> dict[str, object]:
    """Return the content of a TOML file. It is never quoted: it may hold a password."""
    try:
        content = read_bounded(path, CONFIG_BYTES_MAX).decode()
        return tomllib.loads(content)
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        expected = f"a readable TOML file of settings: {reason}"
        raise SettingError(field, str(path), expected) from None


def _texts(name: str, value: object, path: str) -> str | list[str]:
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return value if name == "gap_database" else " ".join(value)
    if not isinstance(value, str | bool | int | float):
        kind = type(value).__name__
        raise SettingError(f"{name} in {path}", kind, "a text, a number, true or false")
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return _Databases().split_envvar_value(text) if name == "gap_database" else text


# -- names, addresses and secrets ------------------------------------------------------------------


def flag_of(name: str) -> str:
    """Return the flag of a setting."""
    return "--" + name.replace("_", "-")


def variable_of(name: str) -> str:
    """Return the environment variable of a setting."""
    return ENVIRONMENT_PREFIX + name.upper()


def _ways(name: str) -> str:
    return f"{flag_of(name)}, {variable_of(name)} or {DEFAULT_CONFIG}"


def owner_of(settings: Settings) -> str:
    """Return the name by which a sequencer of this process leads."""
    return settings.owner or f"{platform.node() or 'unknown'}:{os.getpid()}"


def has_flag(name: str) -> bool:
    """Return whether a flag may give the setting: what `ps` shows must not be secret."""
    return name not in _WHOLE


def is_secret(name: str) -> bool:
    """Return whether the setting may hold a password."""
    return name in _WHOLE or name in _DSNS


def unknown_variables(environ: Mapping[str, str]) -> list[str]:
    """Return the variables of our form that are no setting: most likely misspelt.

    `config show` shows them. They are not refused, since an orchestrator may set some of its own.
    """
    known = {*map(variable_of, SETTING_NAMES), CONFIG_VARIABLE}
    return sorted(name for name in {*environ} - known if name.startswith(ENVIRONMENT_PREFIX))


@contextmanager
def named_as_settings(fields: Mapping[str, str]) -> Iterator[None]:
    """Name the setting in an error of a config; `fields` are the config's, by setting."""
    try:
        yield
    except SettingError as error:
        names = {field: name for name, field in fields.items()}
        name = names.get(error.field, error.field)
        raise SettingError(name, error.value, error.expected) from None


def checked_dsn(name: str, value: str, ways: str = "", *, writes: bool = False) -> str:
    """Return `value` when it is a libpq URL, or libpq's keywords, that can be used.

    `ways` says how it can be set, where it is no setting; what `writes` is refused where a standby
    may be chosen. Raises SettingError, which shows no password.
    """
    from chain_kernel.clients.database_config import DatabaseConfig

    if not value:
        raise SettingError(name, value, f"a PostgreSQL URL, by {ways or _ways(name)}")
    try:
        config = DatabaseConfig.of(value)
        if writes:
            config.for_writing()
    except SettingError as error:
        field = name if error.field == "database" else f"{error.field} of {name}"
        raise SettingError(field, error.value, error.expected) from None
    return value


_SECRET_OPTIONS: Final = ("password", "sslpassword")


def shown(name: str, value: object) -> object:
    """Return the value of a setting as it may be shown: passwords replaced."""
    if name in _WHOLE:
        return "***" if value else ""
    if name in _DSNS:
        return " ".join(map(shown_dsn, _all_of(value)))
    return masked(value) if isinstance(value, str) else value


def shown_dsn(dsn: str) -> str:
    """Return what may be shown of a text that names a database."""
    if "://" in dsn:
        return mask_dsn(dsn)
    found = {key: "***" if key in _SECRET_OPTIONS else each for key, each in _parsed(dsn).items()}
    return " ".join(f"{key}={each}" for key, each in found.items()) or mask_dsn(dsn)


def passwords(dsn: str) -> set[str]:
    """Return the passwords of a text, as they are written and as they are decoded."""
    found = {value for option, value in _parsed(dsn).items() if option in _SECRET_OPTIONS}
    written = written_passwords(dsn)
    return found | written | {*map(unquote, written)}


def _parsed(dsn: str) -> dict[str, str]:
    try:
        return parse(dsn)
    except SettingError:
        return {}


def _all_of(value: Any) -> tuple[str, ...]:  # noqa: ANN401 - a text, or several
    return value if isinstance(value, tuple) else (value,) if value else ()
