"""Options that commands share, and groups of commands."""

from __future__ import annotations

import difflib
import functools
import getpass
import os
import platform
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from chain_kernel.config import checked_text
from chain_kernel.limits import CHAIN_ID_MAX, ID_MAX
from chainctl.logs import Subject, set_up_logging
from chainctl.settings import (
    DEFAULT_CONFIG,
    choices,
    default_of,
    description,
    flag_of,
    flagged,
    form_of,
    load_settings,
    may_be_many,
    name_of,
    variable_of,
)
from chainctl.units import Span

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from chainctl.settings import Settings, SourcedSettings


# -- examples of each command ----------------------------------------------------------------------

EXAMPLES: Final = {
    "": (
        'chainctl stack up && eval "$(chainctl stack env)"',
        "chainctl doctor",
        "chainctl sequence --chain 1 --input orders.csv",
    ),
    "demo": ("chainctl demo", "chainctl demo --input orders.csv.xz --loss 0.3 --seed 7"),
    "stack up": ('chainctl stack up && eval "$(chainctl stack env)"',),
    "stack down": ("chainctl stack down",),
    "stack status": ("chainctl stack status",),
    "stack env": ('eval "$(chainctl stack env)"',),
    "stack reset": ("chainctl stack reset", "chainctl stack reset --yes"),
    "schema print": ("chainctl schema print > schema.sql", "chainctl schema print --part outbox"),
    "schema apply": ("chainctl schema apply", "chainctl schema apply --part inbox"),
    "schema check": ("chainctl schema check --own-role reports",),
    "schema upgrade": (
        "chainctl schema upgrade --dry-run",
        "chainctl schema upgrade --part outbox",
        "chainctl schema upgrade --finish",
    ),
    "grants print": ("chainctl grants print | psql --single-transaction orders",),
    "chain create": (
        "chainctl chain create 1",
        "chainctl chain create 2 --topic orders.eu --partition-ids 90596966400000",
    ),
    "chain list": ("chainctl chain list --rows",),
    "chain verify-mark list": ("chainctl chain verify-mark list --chain 1",),
    "chain verify-mark revoke": (
        'chainctl chain verify-mark revoke --chain 1 --from 5000 --reason "backup restored"',
    ),
    "topic create": (
        "chainctl topic create orders",
        "chainctl topic create orders --partitions 4 --replicas 3 --set min.insync.replicas=2",
        "chainctl topic create orders --retention 30d --dry-run",
    ),
    "sequence": (
        "chainctl sequence --chain 1 --input orders.csv.gz --key-column order_id",
        "chainctl sequence --chain 1 --intake-topic orders --standby --http 9100",
        "zcat orders.csv.gz | chainctl sequence --chain 1 --input - --input-name orders.csv",
    ),
    "receive": (
        "chainctl receive --chain 1 --output journal.jsonl",
        "chainctl receive --chain 1 --output journal.jsonl --name audit --follow",
        "chainctl receive --chain 1 --output new.jsonl --until-idle 30s --decode msgpack",
    ),
    "fill": ("chainctl fill --chain 1 --after 5000 --until 6000 --decode msgpack | jq .payload",),
    "seal export": (
        "chainctl seal export --chain 1",
        "chainctl seal export --to /mnt/vault/seals --sign /etc/orderchain/seal.key --every 1h",
    ),
    "seal key": ("chainctl seal key /etc/orderchain/seal.key",),
    "seal show": ("chainctl seal show /mnt/vault/seals/*.json",),
    "verify": (
        "chainctl verify --chain 1 --source database --source journal:journal.jsonl",
        "chainctl verify --all-chains --source database --since-verified --report today.html",
        "chainctl verify --chain 1 --source database --source topic --follow --checkpoint /srv/v1",
    ),
    "archive": (
        "chainctl archive --chain 1 --archive /srv/archive",
        "chainctl archive --chain 1 --archive /srv/archive --check",
    ),
    "retention": (
        "chainctl retention --chain 1 --archive /srv/archive --until 20000000 --dry-run",
        'chainctl retention --chain 1 --archive /srv/archive --until 5000 --drop --reason "disk"',
    ),
    "repair": (
        'chainctl repair --chain 1 --from topic --reason "page was overwritten" --dry-run',
        'chainctl repair --chain 1 --from archive:/srv/archive --reason "partition was dropped"',
        'chainctl repair --chain 1 --from topic --expect-seals /mnt/seals --reason "restored"',
    ),
    "status": ("chainctl status --chain 1", "chainctl status --chain 1 --watch 2s"),
    "top": ("chainctl top", "chainctl top --once --json"),
    "leader": ("chainctl leader --chain 1",),
    "step-down": ('chainctl step-down --chain 1 --reason "new release" --wait 30s',),
    "takeover": ('chainctl takeover --chain 1 --reason "the leader hangs" --wait 10s',),
    "receivers list": ("chainctl receivers list --chain 1",),
    "receivers forget": (
        'chainctl receivers forget old-matcher --chain 1 --reason "replaced in June"',
    ),
    "receivers move": (
        'chainctl receivers move matcher --chain 1 --to 5000 --reason "replay" --dry-run',
    ),
    "receivers reset": (
        'chainctl receivers reset matcher --chain 1 --reason "new book" --dry-run',
    ),
    "lag": (
        "chainctl lag --chain 1 --watch 5s",
        "chainctl lag --chain 1 --max-seconds 30s --max-rows 100000",
    ),
    "gaps": (
        "chainctl gaps --chain 1 --open --since 1h",
        "chainctl gaps --chain 1 --name matcher --sum",
    ),
    "unhalt": ('chainctl unhalt --chain 1 --name matcher --reason "verified, case 4711"',),
    "tail": ("chainctl tail --chain 1 --limit 5 --watch 2s",),
    "show": (
        "chainctl show 4711 --chain 1",
        "chainctl show 4711 --chain 1 --journal journal.jsonl --archive /srv/archive",
    ),
    "rejects": ("chainctl rejects --chain 1 --source topic:orders:0 --since 1h",),
    "acts": ("chainctl acts --chain 1 --since 7d",),
    "sizes": (
        "chainctl sizes --over 1d",
        "chainctl sizes --max-bytes 500GB --max-bytes log=20GB --max-bytes topic=100GB",
    ),
    "doctor": ("chainctl doctor", "chainctl doctor --chain 1 --watch 30s"),
    "console": (
        "chainctl console --report /var/lib/orderchain-verify/report.html",
        "chainctl console --host 0.0.0.0 --token-file /etc/orderchain/console-token",
    ),
    "outbox relay": ("chainctl outbox relay --retention-hours 3d --http 9101",),
    "outbox destination set": (
        "chainctl outbox destination set trades --topic trades --consumer clearing",
        "chainctl outbox destination set trades --resend-seconds 30s --payload-bytes-max 64KB",
    ),
    "outbox destination key": ("chainctl outbox destination key trades > trades.key",),
    "outbox destination list": ("chainctl outbox destination list",),
    "outbox status": ("chainctl outbox status", "chainctl outbox status --overdue 5m --watch 10s"),
    "outbox list": (
        "chainctl outbox list --status abnormal",
        "chainctl outbox list --destination trades --older-than 1h",
    ),
    "outbox show": ("chainctl outbox show 0197f7e2-1111-7000-8000-000000000001",),
    "outbox acts": ("chainctl outbox acts --since 7d",),
    "outbox retry": ('chainctl outbox retry --consumer clearing --reason "it is fixed"',),
    "outbox abandon": (
        "chainctl outbox abandon --id 0197f7e2-1111-7000-8000-000000000001 "
        '--reason "cancelled by phone"',
    ),
    "outbox resend": ('chainctl outbox resend --all --reason "consumer restored" --dry-run',),
    "outbox keep": ("chainctl outbox keep --history-bytes-max 2GB",),
    "outbox dead list": ("chainctl outbox dead list --consumer clearing --older-than 1d",),
    "outbox dead show": ("chainctl outbox dead show 0197f7e2-1111-7000-8000-000000000001",),
    "outbox dead acts": ("chainctl outbox dead acts --since 7d",),
    "outbox dead retry": ('chainctl outbox dead retry --all --reason "handler is fixed"',),
    "outbox dead abandon": (
        "chainctl outbox dead abandon --why 'refused by the handler' --reason \"test data\"",
    ),
    "messages serve": ("chainctl messages serve --clients /etc/orderchain/clients.toml",),
    "messages token": ("chainctl messages token",),
    "config show": ("chainctl config show",),
    "completion": (
        'eval "$(chainctl completion bash)"',
        "chainctl completion fish > ~/.config/fish/completions/chainctl.fish",
    ),
    "bench": ("chainctl bench --quick", "chainctl bench --only comparison"),
}
"""By the words after `chainctl`; a test has each one read as a call would read it."""


GROUP_LINES: Final = 3


def examples_of(path: str) -> tuple[str, ...]:
    """Return the examples of a command; of a group the first one of each of its first commands."""
    if path in EXAMPLES:
        return EXAMPLES[path]
    first: dict[str, str] = {}
    for name, lines in EXAMPLES.items():
        if name.startswith(f"{path} "):
            first.setdefault(name.removeprefix(f"{path} ").partition(" ")[0], lines[0])
    return tuple(first.values())[:GROUP_LINES]


def write_examples(ctx: click.Context, formatter: click.HelpFormatter) -> None:
    """Write the examples of the command of `ctx`, each on a line of its own, however long."""
    lines = examples_of(ctx.command_path.partition(" ")[2])
    if not lines:
        return
    with formatter.section("Examples"):
        for line in lines:
            formatter.write(f"{'':>{formatter.current_indent}}{line}\n")


# -- options, and commands that have them ----------------------------------------------------------


_SETTING: Final = "setting_"
"""What the names of parameters begin with that are settings: a flag, a variable or a line."""


_SENTENCE_MAX: Final = 1_000
"""Longer than any first sentence of a command."""


class Command(click.Command):
    """A command whose help has its settings apart, and ends with examples."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write what only this command has first, then the settings that many commands share."""
        records: dict[str, list[tuple[str, str]]] = {"Options": [], "Settings": []}
        for parameter in self.get_params(ctx):
            is_setting = (parameter.name or "").startswith(_SETTING)
            if record := parameter.get_help_record(ctx):
                records["Settings" if is_setting else "Options"].append(record)
        for title, written in records.items():
            if written:
                with formatter.section(title):
                    formatter.write_dl(written)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples; see `chainctl.options`."""

        write_examples(ctx, formatter)


class SuggestingGroup(click.Group):
    """A group of commands; an unknown one suggests the nearest."""

    command_class = Command
    format_epilog = Command.format_epilog

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write what each command does as a whole sentence: click cuts it at the line's end."""
        found = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, each.get_short_help_str(_SENTENCE_MAX)) for name, each in found if each]
            )

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that `args` begin with."""
        known = self.list_commands(ctx)
        if args[0] not in known and not args[0].startswith("-"):
            ctx.fail(unknown_command(args[0], known))
        return super().resolve_command(ctx, args)


def unknown_command(name: str, known: Sequence[str]) -> str:
    """Return the message for an unknown command."""
    nearest = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {nearest[0]!r}?" if nearest else f"expected one of {', '.join(known)}"
    return f"unknown command {name!r}, {hint}"


SECRETS: Final = "chainctl.secrets"
"""Where the passwords of this call are kept in click's context, so that errors can hide them."""

_SOURCED: Final = "chainctl.sourced"
"""The key, in click's context, for the settings with their sources."""

IS_DEBUG: Final = "chainctl.is_debug"
"""The key, in click's context, for whether errors show their traceback."""


class Integer(click.IntRange):
    """A whole number within bounds."""

    name = "integer"


CHAIN_ID: Final = Integer(1, CHAIN_ID_MAX)
ROW_ID: Final = Integer(0, ID_MAX)

chain_option: Final = click.option(
    "--chain", "chain_id", type=CHAIN_ID, required=True, metavar="N", help="The chain."
)

some_chain_option: Final = click.option(
    "--chain", "chain_id", type=CHAIN_ID, metavar="N", help="Only this chain.  [default: all]"
)

watch_option: Final = click.option(
    "--watch", "watch_seconds", type=Span(), metavar="SPAN",
    help="Show it again after each SPAN (2s, 1m), until Ctrl-C; with --json as JSON Lines.",
)  # fmt: skip

since_option: Final = click.option(
    "--since",
    "since_seconds",
    type=Span(),
    metavar="SPAN",
    help="Only those of the last SPAN (1h, 7d).",
)

ROWS_SHOWN: Final = 1_000
"""Rows that a list shows unless it is asked for more: a screen, not a dump."""

limit_option: Final = click.option(
    "--limit", type=Integer(1, 1_000_000), default=ROWS_SHOWN, metavar="COUNT", show_default=True,
    help="Show at most so many, the last ones.",
)  # fmt: skip

json_option: Final = click.option(
    "--json", "as_json", is_flag=True, help="Write JSON to stdout, for machines."
)


reason_option: Final = click.option(
    "--reason", required=True, metavar="TEXT", help="Why; it is stored permanently."
)

actor_option: Final = click.option(
    "--actor", metavar="TEXT", help="Who does this.  [default: user@host]"
)


def options(*decorators: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return one decorator that gives a command several options, in this order."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        return functools.reduce(lambda made, each: each(made), reversed(decorators), function)

    return decorate


class ActByHand(NamedTuple):
    """Who changes something by hand, and why."""

    actor: str
    reason: str
    is_dry_run: bool


def acts_by_hand(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command `--reason`, `--actor` and `--dry-run`, and the argument `act` made of them."""

    @functools.wraps(function)
    def with_act(*args: object, **options: Any) -> object:  # noqa: ANN401 - click's own
        act = act_by_hand(*(options.pop(name) for name in ("actor", "reason", "dry_run")))
        return function(*args, act=act, **options)

    dry_run = click.option("--dry-run", is_flag=True, help="Only show what would be done.")
    return options(reason_option, actor_option, dry_run)(with_act)


def act_by_hand(actor: str | None, reason: str, is_dry_run: bool) -> ActByHand:
    """Return who acts and why; `user@host` unless an actor is given. Raises SettingError."""
    return ActByHand(
        actor=checked_text("--actor", user_and_host() if actor is None else actor),
        reason=checked_text("--reason", reason),
        is_dry_run=is_dry_run,
    )


def user_and_host() -> str:
    """Return `user@host`, the default of every `--actor`."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # an account without a name
        user = "unknown"
    return f"{user}@{platform.node()}"


def who(actor: str | None) -> str:
    """Return the name to store: as given, else user@host."""
    return actor or user_and_host()


def uses_settings(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command the flags of the settings `names`, and the argument `settings`.

    `log_level` and `--config` come with every command. A command that uses `log_format` runs long:
    its log lines have a time.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def with_settings(*args: object, **options: Any) -> object:  # noqa: ANN401 - click's own
            return function(*args, settings=_taken(options, names), **options)

        return _with_flags(with_settings, names)

    return decorate


def sourced_settings() -> SourcedSettings:
    """Return the settings of the command that runs, and where each came from."""
    found: SourcedSettings = click.get_current_context().meta[_SOURCED]
    return found


def _with_flags(function: Callable[..., Any], names: tuple[str, ...]) -> Callable[..., Any]:
    config = click.option(
        "--config",
        f"{_SETTING}config",
        type=click.Path(),
        metavar="FILE",
        help=f"TOML file with settings. [env: CHAINCTL_CONFIG; else ./{DEFAULT_CONFIG}]",
    )
    decorated = config(function)
    for name in reversed(flagged((*names, "log_level"))):
        is_many = may_be_many(name)
        repeated = " May be repeated." if is_many else ""
        default = f"; default: {default_of(name)}" if default_of(name) else ""
        decorated = click.option(
            flag_of(name),
            f"{_SETTING}{name}",
            type=_type_of(name),
            metavar=None if choices(name) else form_of(name),
            multiple=is_many,
            help=f"{_sentence(description(name))}{repeated} [env: {variable_of(name)}{default}]",
        )(decorated)
    return decorated


class _Choices(click.Choice):  # type: ignore[type-arg] # generic only in new versions
    """Completes the values of a setting. It is checked later, as one from a variable or file is."""

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return `value`."""
        return value


def _type_of(name: str) -> click.ParamType | None:  # type: ignore[type-arg] # see units.Span
    """Return the type of a setting's flag, which completes it; its value is checked later."""
    if choices(name):
        return _Choices(choices(name))
    return click.Path() if name.endswith(("file", "_dir")) else None


def _taken(options: dict[str, Any], names: tuple[str, ...]) -> Settings:
    """Take the settings' flags out of `options`, and return the settings."""
    flags = {
        name.removeprefix(_SETTING): _text_of(options.pop(name))
        for name in list(options)
        if name.startswith(_SETTING)
    }
    config = flags.pop("config")
    sourced = load_settings(flags, os.environ, config)
    context = click.get_current_context()
    meta = context.meta
    settings = sourced.settings
    meta[_SOURCED] = sourced
    meta[SECRETS] = settings.secrets()
    meta[IS_DEBUG] = settings.log_level == "debug"
    running = None
    if "log_format" in names:
        name = name_of(settings) if "name" in names else context.params.get("name")
        running = Subject(context.params.get("chain_id"), name)
    set_up_logging(settings, running)
    return settings


def _text_of(given: str | tuple[str, ...] | None) -> str | None:
    """Return what a flag gave; the flag may be repeated."""
    if isinstance(given, tuple):
        return " ".join(given) or None
    return given


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."
