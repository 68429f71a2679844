"""Options that commands share, and groups of commands."""

from __future__ import annotations

import functools
import getpass
import platform
import re
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click
from click.core import ParameterSource

from chain_kernel.config import checked_text
from chain_kernel.errors import SettingError
from chain_kernel.limits import CHAIN_ID_MAX, ID_MAX
from chain_kernel.start_at import StartAt
from chainctl.logs import Subject, set_up_logging
from chainctl.settings import SETTING, owner_of, setting_options, settings_in
from chainctl.units import Integer, Span

if TYPE_CHECKING:
    from collections.abc import Callable

    from chainctl.settings import Settings, SourcedSettings


# -- an example of each command --------------------------------------------------------------------

EXAMPLES: Final = {
    "quickstart": "--folder /tmp/first",
    "demo": "--input orders.csv.xz --loss 0.3 --seed 7",
    "stack up": "--stack-dir /srv/stack",
    "stack down": "--stack-dir /srv/stack",
    "stack status": "--json",
    "stack env": "--stack-dir /srv/stack > stack.env",
    "stack reset": "--stack-dir /tmp/trial --yes",
    "bench": "--quick --output figures",
    "doctor": "--chain 1",
    "config show": "--json",
    "schema print": "--part outbox > outbox.sql",
    "schema apply": "--part inbox",
    "schema check": "--own-role reports",
    "schema upgrade": "--part outbox --dry-run",
    "grants print": "| psql --single-transaction orders",
    "chain create": "2 --topic orders.eu --partition-ids 90596966400000",
    "chain list": "--json | jq .",
    "chain verify-mark list": "--chain 1",
    "chain verify-mark revoke": '--chain 1 --mark 5000 --reason "backup restored"',
    "topic create": "orders --partitions 4 --replicas 3 --set min.insync.replicas=2",
    "sequence": "--chain 1 --intake-topic orders --standby --http 9100",
    "receive": "--chain 1 --output journal.jsonl --name audit --follow",
    "fill": "--chain 1 --after 5000 --until 6000 --decode msgpack | jq .payload",
    "seal export": "--store /mnt/vault/seals --sign /etc/orderchain/seal.key --every 1h",
    "seal key": "/etc/orderchain/seal.key",
    "seal show": "/mnt/vault/seals/*.json",
    "verify": "--chain 1 --source database --source journal:journal.jsonl",
    "verify table": "trades --id-column seq --key-column account",
    "verify replay": "my_books:BOOKS --chain 1 --states receiver:matching",
    "archive": "--chain 1 --archive /srv/archive",
    "retention": '--chain 1 --archive /srv/archive --until 5000 --drop --reason "disk"',
    "repair": '--chain 1 --source topic --reason "page was overwritten" --dry-run',
    "status": "--chain 1",
    "leader": "--chain 1 --check",
    "step-down": '--chain 1 --reason "new release" --wait 30s',
    "takeover": '--chain 1 --reason "the leader hangs" --wait 10s',
    "pass-over": 'topic:orders:0 17 --chain 1 --reason "the sender sends it again"',
    "receivers forget": 'old-matcher --chain 1 --reason "replaced in June"',
    "receivers move": 'matcher --chain 1 --to 5000 --reason "replay" --dry-run',
    "receivers reset": 'matcher --chain 1 --reason "new book" --dry-run',
    "lag": "--chain 1 --max-seconds 30s --max-rows 100000",
    "gaps": "--chain 1 --open --since 1h",
    "unhalt": 'matcher --chain 1 --reason "verified, case 4711"',
    "tail": "--chain 1 --limit 5",
    "show": "4711 --chain 1",
    "state": "my_books:BOOKS --chain 1 --group ALPHA --as-of committed:2026-01-31T09:30Z",
    "rejects": "--chain 1 --intake topic:orders:0 --since 1h",
    "acts": "--chain 1 --since 7d",
    "sizes": "--over 1d --max-bytes 500GB",
    "console": "--host 0.0.0.0 --token-file /etc/orderchain/console-token",
    "outbox relay": "--retention-hours 3d --http 9101",
    "outbox destination set": "trades --topic trades --consumer clearing",
    "outbox destination list": "--json",
    "outbox destination remove": "trades",
    "outbox destination key": "trades > trades.key",
    "outbox status": "--overdue 5m",
    "outbox list": "--destination trades --older-than 1h",
    "outbox show": "0197f7e2-1111-7000-8000-000000000001",
    "outbox acts": "--since 7d",
    "outbox retry": '--consumer clearing --reason "it is fixed"',
    "outbox abandon": '--id 0197f7e2-1111-7000-8000-000000000001 --reason "cancelled by phone"',
    "outbox resend": '--all --reason "consumer restored" --dry-run',
    "outbox keep": "--history-bytes-max 2GB",
    "outbox dead list": "--consumer clearing --older-than 1d",
    "outbox dead show": "0197f7e2-1111-7000-8000-000000000001 --consumer clearing",
    "outbox dead acts": "--since 7d",
    "outbox dead pass-over": 'clearing topic:trades:0 17 --reason "it is sent again"',
    "outbox dead retry": '--all --reason "handler is fixed"',
    "outbox dead abandon": "--why 'refused by the handler' --reason \"test data\"",
    "messages serve": "--clients /etc/orderchain/clients.toml",
    "messages token": "--json",
}
"""Arguments of an example of each command; a test has each one read as a call would read it."""


def write_example(ctx: click.Context, formatter: click.HelpFormatter) -> None:
    """Write the example of the command of `ctx`, or of the first one of a group, on a line of its
    own, however long."""
    program, _, path = ctx.command_path.partition(" ")
    for name, arguments in EXAMPLES.items():
        if path and f"{name} ".startswith(f"{path} "):
            with formatter.section("Example"):
                room = " " * formatter.current_indent
                formatter.write(f"{room}{program} {name} {arguments}\n")
            return


# -- options, and commands that have them ----------------------------------------------------------


_SENTENCE_MAX: Final = 1_000
"""Longer than any first sentence of a command."""


class Command(click.Command):
    """A command whose help has its settings apart, and ends with an example."""

    def __init__(self, *args: Any, **given: Any) -> None:  # noqa: ANN401 - click's own
        super().__init__(*args, **given)
        names = getattr(self.callback, "setting_names", None)
        if names is not None:
            self.params += setting_options(names)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write what only this command has first, then the settings that many commands share."""
        records: dict[str, list[tuple[str, str]]] = {"Options": [], "Settings": []}
        for parameter in self.get_params(ctx):
            is_setting = (parameter.name or "").startswith(SETTING)
            if record := parameter.get_help_record(ctx):
                records["Settings" if is_setting else "Options"].append(record)
        for title, written in records.items():
            if written:
                with formatter.section(title):
                    formatter.write_dl(written)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the example."""
        write_example(ctx, formatter)


class Group(click.Group):
    """A group of commands."""

    command_class = Command
    format_epilog = Command.format_epilog

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that was named. Raises UsageError, which proposes one like it."""
        name = args[0]
        is_option = name.startswith("-")  # one before the command: click says so
        if ctx.resilient_parsing or is_option or self.get_command(ctx, name) is not None:
            return super().resolve_command(ctx, args)
        close = get_close_matches(name, self.list_commands(ctx), 1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise click.UsageError(f"No such command {name!r}.{hint}", ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write what each command does as a whole sentence: click cuts it at the line's end."""
        found = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, each.get_short_help_str(_SENTENCE_MAX)) for name, each in found if each]
            )


class CommandGroup(Group, Command):
    """A command that has others below it: `chainctl verify`, and `chainctl verify table`.

    Options before the name of another one would be its own, and are refused.
    """

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command below that was named. Raises UsageError, also for an option."""
        for parameter in self.params:
            source = ctx.get_parameter_source(parameter.name or "")
            if source is ParameterSource.COMMANDLINE:
                raise click.UsageError(f"{parameter.opts[0]} belongs after {args[0]}.", ctx)
        return super().resolve_command(ctx, args)


SECRETS: Final = "chainctl.secrets"
"""The key, in click's context, for the passwords of this call, so that errors can hide them."""

IS_DEBUG: Final = "chainctl.is_debug"
"""The key, in click's context, for whether errors show their traceback."""


CHAIN_ID: Final = Integer(1, CHAIN_ID_MAX)
CHAINS_MAX: Final = 1_000
"""Chains of one process."""
_CHAIN_RUN: Final = re.compile(r"([0-9]{1,10})(?:-([0-9]{1,10}))?")


class ChainIds(click.ParamType):  # type: ignore[type-arg] # generic only in new versions
    """Numbers of chains, with ranges: `1-50,60`."""

    name = "chains"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        """Return the numbers, in their order."""
        found: set[int] = set()
        for part in str(value).split(","):
            run = _CHAIN_RUN.fullmatch(part.strip())
            first, last = (int(run[1]), int(run[2] or run[1])) if run else (0, 0)
            chains = range(first, last + 1)
            if not 1 <= first <= last <= CHAIN_ID_MAX or len(chains) > CHAINS_MAX:
                found.clear()
                break
            found.update(chains)
        if not 1 <= len(found) <= CHAINS_MAX:
            expected = f"1 to {CHAINS_MAX:,} chains such as 1-50,60, each 1 to {CHAIN_ID_MAX}"
            self.fail(f"{value!r}, expected {expected}", param, ctx)
        return tuple(sorted(found))


class Start(click.ParamType):  # type: ignore[type-arg] # generic only in new versions
    """A place to begin: `beginning`, `end` or a time."""

    name = "start"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> StartAt:
        """Return what the text says."""
        try:
            return StartAt.parse(str(value))
        except SettingError as error:
            self.fail(f"{value}, expected {error.expected}", param, ctx)


class Name(click.ParamType):  # type: ignore[type-arg] # generic only in new versions
    """A name that a database can hold: bytes of a command line that are no UTF-8 are refused."""

    name = "name"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> str:
        """Return the name as it is."""
        text = str(value)
        try:
            text.encode()
        except UnicodeEncodeError:
            self.fail(f"{text!r}, expected UTF-8", param, ctx)
        return text


ROW_ID: Final = Integer(0, ID_MAX)

chain_option: Final = click.option(
    "--chain", "chain_id", type=CHAIN_ID, required=True, metavar="N", help="The chain."
)

some_chain_option: Final = click.option(
    "--chain", "chain_id", type=CHAIN_ID, metavar="N", help="Only this chain.  [default: all]"
)

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


master_option: Final = click.option(
    "--master", metavar="URL",
    help="A Spark master, or sc://HOST:PORT for Spark Connect. [default: Spark in this process]",
)  # fmt: skip


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
    """The actor of a change by hand, and the reason."""

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
            own = {name: value for name, value in options.items() if not name.startswith(SETTING)}
            return function(*args, settings=_prepared(names), **own)

        with_settings.setting_names = names  # type: ignore[attr-defined] # `Command` reads it
        return with_settings

    return decorate


def sourced_settings() -> SourcedSettings:
    """Return the settings of the command that runs, and where each came from."""
    return settings_in(click.get_current_context())


def _prepared(names: tuple[str, ...]) -> Settings:
    """Return the settings, after logging and errors were set up by them."""
    context = click.get_current_context()
    settings = settings_in(context).settings
    context.meta[SECRETS] = settings.secrets()
    context.meta[IS_DEBUG] = settings.log_level == "debug"
    running = None
    if "log_format" in names:
        name = owner_of(settings) if "owner" in names else context.params.get("name")
        running = Subject(context.params.get("chain_id"), name)
    set_up_logging(settings, running)
    return settings
