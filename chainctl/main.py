"""The command `chainctl`: finds the command that was named, runs it, and ends as `exits` says.

Commands are imported when they are called, not before: `chainctl --help` needs none of them, and
`chainctl config show` needs neither asyncpg nor pyspark.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

import click

from chain_kernel.version import installed_version
from chainctl.exits import (
    ExitCode,
    Terminated,
    error_line,
    exit_code,
    hide_secrets,
    traceback_text,
)
from chainctl.options import IS_DEBUG, SECRETS, Group
from chainctl.output import keep_command_line, talk, talk_through
from chainctl.settings import passwords

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import FrameType

    from click.shell_completion import CompletionItem

PROGRAM: Final = "chainctl"
COMPLETION_VARIABLE: Final = "_CHAINCTL_COMPLETE"
"""Set by the shell to ask for its script (`bash_source`), and by that script for each completion:
what is to be completed is then in other variables."""

GROUPS: Final[dict[str, dict[str, tuple[str, str]]]] = {
    "On this machine": {
        "quickstart": ("", "The first half minute, on PostgreSQL alone."),
        "demo": ("", "The whole path on one machine, with faults, and a verdict."),
        "stack": ("stack", "The local PostgreSQL and Kafka."),
        "bench": ("", "Measure the engine on this machine, and its rivals."),
        "doctor": ("doctor", "Check what a start needs."),
        "config": ("config", "Show settings and their sources."),
    },
    "Set up and run": {
        "schema": ("schema", "The engine's tables: print, apply, check."),
        "grants": ("schema", "The roles and what each may do, as SQL."),
        "chain": ("chain.chains", "Make and list chains; list and revoke their verified marks."),
        "topic": ("chain.topic", "Make the topic from which a sequencer takes orders."),
        "sequence": (
            "chain.sequence",
            "Put a file's rows, or a topic's records, into a chain.",
        ),
        "receive": ("chain.receive", "Write a chain to a journal, in order and without gaps."),
        "fill": ("chain.receive", "Read missing rows from the database."),
        "outbox": ("", "Messages in any order: run a relay, see and fix them."),
        "messages": ("", "The outbox as an HTTP service."),
    },
    "Look": {
        "status": ("status", "The state of a chain, or of all: heads, leader, receivers."),
        "leader": ("leader", "The leader of a chain, and its last terms."),
        "lag": ("receivers", "The receivers of a chain, and how far they are behind."),
        "gaps": ("receivers", "Orders that receivers read from the database, and why."),
        "tail": ("records", "The last orders of a chain."),
        "show": ("records", "One order: its row, batch, seal, and who met it."),
        "state": ("state", "The state that a chain's orders give, as of an order or a time."),
        "rejects": ("records", "Records of intakes that became no order, and why."),
        "acts": ("records", "Changes of a chain by hand, and why."),
        "sizes": ("sizes", "The sizes of database, log and topics, and their growth."),
        "console": ("console", "One page that shows all of it live."),
    },
    "Act by hand": {
        "step-down": ("leader", "Ask the leader of a chain to hand over, with a reason."),
        "takeover": ("leader", "Let the next process lead at once, with a reason."),
        "pass-over": (
            "chain.pass_over",
            "Go past a record that cannot be read, with a reason.",
        ),
        "receivers": ("receivers", "Forget, move and reset receivers."),
        "unhalt": ("receivers", "Let a halted receiver start again, with a reason."),
    },
    "Prove and keep": {
        "seal": ("verifier.seal", "The seal at the head of a chain, to be kept elsewhere."),
        "verify": ("verifier.verify", "Prove a chain whole with Spark, or name its faults."),
        "archive": (
            "verifier.archive",
            "Write verified rows as Parquet, and check them.",
        ),
        "retention": (
            "verifier.archive",
            "Detach or drop partitions that are archived.",
        ),
        "repair": (
            "verifier.repair",
            "Write back missing rows that seals prove.",
        ),
    },
}
"""The commands by what they are for: the module of `chainctl.commands`, in which a function has the
command's name, and the line in the help. Another package brings those without a module."""

COMMANDS: Final = {name: line for group in GROUPS.values() for name, (_, line) in group.items()}
_ROOM_OF: Final = {name: room for group in GROUPS.values() for name, (room, _) in group.items()}


def _brought(name: str) -> click.Command:
    """Return a command that another package brings. Raises UsageError where that is not there."""
    (entry,) = entry_points(group="chainctl.commands", name=name)
    try:
        found: click.Command = entry.load()
    except ModuleNotFoundError as error:
        if error.name != entry.module.partition(".")[0]:
            raise
        raise click.UsageError(
            f"{name} is in the checkout of orderchain, not in the package."
        ) from None
    return found


class LazyGroup(Group):
    """A group whose commands are imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands that are here, in the order of use."""
        brought = {
            entry.name
            for entry in entry_points(group="chainctl.commands")
            if find_spec(entry.module.partition(".")[0])
        }
        return [name for name, room in _ROOM_OF.items() if room or name in brought]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command `cmd_name`; None when there is none of that name."""
        if cmd_name not in COMMANDS:
            return None
        if not _ROOM_OF[cmd_name]:
            return _brought(cmd_name)
        room = import_module(f"chainctl.commands.{_ROOM_OF[cmd_name]}")
        found: click.Command = getattr(room, cmd_name.replace("-", "_"))
        return found

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete the names of commands without importing them, and options."""
        from click.shell_completion import CompletionItem

        names = [name for name in self.list_commands(ctx) if name.startswith(incomplete)]
        found = [CompletionItem(name, help=COMMANDS[name]) for name in names]
        return [*found, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands without importing them."""
        width = max(map(len, COMMANDS))  # one column of sentences for all groups
        here = set(self.list_commands(ctx))
        for title, group in GROUPS.items():
            with formatter.section(title):
                shown = [name for name in group if name in here]
                formatter.write_dl([(name.ljust(width), COMMANDS[name]) for name in shown])


def _print_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        click.echo(f"chainctl {installed_version()}")
        ctx.exit()


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version,
    help="Show the version and exit.",
)  # fmt: skip
def cli() -> None:
    """Sequenced orders: every one once, in one agreed order, with none missing.

    Settings come from flags, CHAINCTL_* variables, a TOML file, defaults, in that order.
    Exit codes: 0 clean, 1 findings, 2 refused, 3 failed or not completed, 130 Ctrl-C.
    """


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. Never raises."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    meta: dict[str, Any] = {}
    _occupy_standard_files()
    talk_through(None)
    try:
        with _terminable():
            code = _run(given, meta)
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        code = ExitCode.FAILED
        _drop_stdout()
    except BaseException as error:  # noqa: BLE001 - the one place where every error ends
        code = _report(error, given, meta)
    return int(code)


def _occupy_standard_files() -> None:
    """Open the null device wherever stdin, stdout or stderr is closed.

    Otherwise the next socket gets its number: what is written to stdout would go to the database,
    and uvloop would end the process.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one


@contextmanager
def _terminable() -> Iterator[None]:
    """While the block runs, SIGTERM raises Terminated, so that temporary files are removed.

    Does nothing outside the main thread, which alone may handle signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    usual = signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, usual or signal.SIG_DFL)  # None: not set by Python


def _terminate(number: int, frame: FrameType | None) -> None:
    raise Terminated("ended by SIGTERM")


def _run(arguments: list[str], meta: dict[str, Any]) -> int:
    if COMPLETION_VARIABLE in os.environ:
        from click.shell_completion import shell_complete

        return shell_complete(
            cli, {}, PROGRAM, COMPLETION_VARIABLE, os.environ[COMPLETION_VARIABLE]
        )
    with cli.make_context(PROGRAM, [*arguments]) as context:
        keep_command_line(context, arguments)
        try:
            result = cli.invoke(context)
        finally:
            meta.update(context.meta)
    return ExitCode.CLEAN if result is None else int(result)


def _report(error: BaseException, arguments: Sequence[str], meta: dict[str, Any]) -> int:
    """Report `error` in one line on stderr, and return the exit code."""
    if isinstance(error, click.exceptions.Exit):
        return error.exit_code
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        click.echo(error.ctx.get_help() if error.ctx else "", err=True)
        return ExitCode.REFUSED
    if isinstance(error, KeyboardInterrupt | click.Abort):
        return _close_stdout(ExitCode.INTERRUPTED)
    if isinstance(error, click.ClickException):
        # It may quote an argument that was put in the wrong place, and is no setting.
        secrets = {secret for each in arguments for secret in passwords(each)}
        talk(f"chainctl: {hide_secrets(_click_line(error), tuple(secrets))}", "error")
        return ExitCode.REFUSED
    secrets = meta.get(SECRETS, ())
    if meta.get(IS_DEBUG):
        for line in traceback_text(error, secrets).split("\n"):
            talk(line, "error")
    if not isinstance(error, Terminated):
        talk(f"chainctl: {error_line(error, secrets)}", "error")
    return _close_stdout(exit_code(error))


def _click_line(error: click.ClickException) -> str:
    """Return click's message as one line, with the command that it is about."""
    line = " ".join(error.format_message().split())
    context = error.ctx if isinstance(error, click.UsageError) else None
    if context is None or context.parent is None:
        return line
    return f"{line.rstrip('.')} (see {context.command_path} --help)"


def _close_stdout(code: int) -> int:
    """Flush stdout, and return `code`; an error of the flush does not change it."""
    with suppress(OSError, ValueError):
        if sys.stdout is not None:
            sys.stdout.flush()
        return code
    _drop_stdout()
    return code


def _drop_stdout() -> None:
    """Point stdout at the null device: else the interpreter would report the lost rest."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
