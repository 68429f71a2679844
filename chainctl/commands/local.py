"""`chainctl stack`, `demo` and `bench`: real servers on this machine, and what runs on them."""

from __future__ import annotations

import os
import random
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from chainctl.exits import ExitCode
from chainctl.monitor_server import AddressType
from chainctl.options import Command, Integer, SuggestingGroup, json_option, uses_settings
from chainctl.output import data, data_json, data_text, table, talk
from chainctl.units import Span
from demo import DUPLICATE, LOSS, ORDERS, ORDERS_MAX, REORDER, DemoOptions

if TYPE_CHECKING:
    from benchmarks.load import Scope
    from chainctl.monitor_server import Address
    from chainctl.settings import Settings
    from demo.summary import Summary
    from local_stack import LocalStack, StackStatus


# -- stack ----------------------------------------------------------------------------------------


@click.group(cls=SuggestingGroup)
def stack() -> None:
    """A real PostgreSQL and a real Kafka on this machine, reached on loopback only."""


@stack.command()
@json_option
@uses_settings("stack_dir")
def up(settings: Settings, as_json: bool) -> None:
    """Start what is not running; the first start fetches Kafka."""
    _show(stack_of(settings).up(talk), as_json=as_json)


@stack.command()
@uses_settings("stack_dir")
def down(settings: Settings) -> None:
    """Stop both servers, keeping their data."""
    stack_of(settings).down(talk)


@stack.command()
@click.option("--yes", "is_sure", is_flag=True, help="Do not ask: for scripts.")
@uses_settings("stack_dir")
def reset(settings: Settings, is_sure: bool) -> ExitCode:
    """Stop both servers and delete their data, ports and passwords.

    It asks first. Exit code 2 if the answer is no, and where nobody can be asked without --yes.
    """
    local = stack_of(settings)
    if local.directory.is_dir() and not (is_sure or _agrees(local.directory)):
        talk("chainctl: nothing was deleted")
        return ExitCode.REFUSED
    local.reset(talk)
    return ExitCode.CLEAN


def _agrees(directory: Path) -> bool:
    """Ask on the terminal whether the stack may be deleted. Raises UsageError without one."""
    if sys.stdin is None or not sys.stdin.isatty():
        raise click.UsageError(f"nobody can be asked whether {directory} may be deleted: --yes.")
    return click.confirm(f"Delete all databases and topics in {directory}?", err=True)


@stack.command()
@json_option
@uses_settings("stack_dir")
def status(settings: Settings, as_json: bool) -> ExitCode:
    """Show how both servers do. Exit code 1 unless both answer."""
    found = stack_of(settings).status()
    _show(found, as_json=as_json)
    if not found.servers:
        talk(f"chainctl: there is no stack in {found.directory} yet (chainctl stack up)")
    return ExitCode.CLEAN if found.up else ExitCode.FINDINGS


@stack.command(short_help="Print the settings that reach the stack.")
@json_option
@uses_settings("stack_dir")
def env(settings: Settings, as_json: bool) -> None:
    """Print the settings that reach the stack: eval "$(chainctl stack env)"."""
    variables = stack_of(settings).environment()
    if as_json:
        data_json(variables)
        return
    for name, value in variables.items():
        data_text(f"export {name}={_quoted(value)}")


def stack_of(settings: Settings) -> LocalStack:
    """Return the local stack that the settings name."""
    from local_stack import LocalStack, default_directory

    named = settings.stack_dir
    folder = Path(named).expanduser().absolute() if named else default_directory(os.environ)
    return LocalStack(folder, is_long_run=False)


def _show(status: StackStatus, *, as_json: bool) -> None:
    rows = [
        (server.name, server.port, server.running, server.answering, str(server.log_path))
        for server in status.servers
    ]
    names = ("name", "port", "running", "answering", "log")
    if as_json:
        servers = [dict(zip(names, row, strict=True)) for row in rows]
        data_json({"directory": str(status.directory), "up": status.up, "servers": servers})
    else:
        table(names, rows)


def _quoted(value: str) -> str:
    """Return `value` for a shell, always in quotes."""
    quoted = shlex.quote(value)
    return quoted if quoted.startswith("'") else f"'{quoted}'"


# -- demo -----------------------------------------------------------------------------------------


def _share(_: click.Context, __: click.Parameter, value: float) -> float:
    """Return a share of the frames. NaN is refused: it compares with nothing."""
    if not 0 <= value <= 1:
        raise click.BadParameter(f"{value} is not a share from 0 to 1.")
    return value


def _two_ports(_: click.Context, __: click.Parameter, value: Address | None) -> Address | None:
    """Return an address that has a port after its own."""
    if value is not None and not 0 < value.port < 2**16 - 1:
        raise click.BadParameter(f"{value} has no port of 1 to 65534.")
    return value


@click.command(cls=Command)
@click.option(
    "--input",
    "input_",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Orders: CSV or JSON Lines, plain or .gz .xz .zst.  [default: generated]",
)
@click.option(
    "--orders",
    type=click.IntRange(1, ORDERS_MAX),
    metavar="COUNT",
    help=f"Orders to generate.  [default: {ORDERS}]",
)
@click.option(
    "--loss",
    type=float,
    callback=_share,
    metavar="SHARE",
    default=LOSS,
    show_default=True,
    help="Lose this share of the frames; above 0, the last one too.",
)
@click.option(
    "--duplicate",
    type=float,
    callback=_share,
    metavar="SHARE",
    default=DUPLICATE,
    show_default=True,
    help="Send this share of the frames twice.",
)
@click.option(
    "--reorder",
    type=float,
    callback=_share,
    metavar="SHARE",
    default=REORDER,
    show_default=True,
    help="Delay this share of the frames by a few others, and half as many by many.",
)
@click.option(
    "--seed",
    type=click.IntRange(0, 2**32 - 1),
    metavar="NUMBER",
    help="The seed of the generated orders and the faults.  [default: drawn, and printed]",
)
@click.option(
    "--http",
    type=AddressType(),
    callback=_two_ports,
    metavar="[HOST:]PORT",
    help="Serve the metrics of the sequencing service there, and those of the matching service at "
    "the next port.",
)
@click.option(
    "--no-spark",
    is_flag=True,
    help="Verify as `chainctl verify --local` does: sooner, and without Spark's installation.",
)
@json_option
@uses_settings("stack_dir")
def demo(
    settings: Settings,
    input_: Path | None,
    orders: int | None,
    loss: float,
    duplicate: float,
    reorder: float,
    seed: int | None,
    http: Address | None,
    no_spark: bool,
    as_json: bool,
) -> ExitCode:
    """Sequence, lose, kill, fill and verify, on a local PostgreSQL and Kafka.

    Starts the stack and leaves it up. Sequences orders into a new chain; drops, repeats, reorders
    and delays frames between Kafka and the matching service, the last frame among the dropped;
    kills the service once; compares its state with the same orders applied straight; and has Spark
    verify database and journal. Exit code 0 only if all is whole.
    """  # fmt: skip
    if input_ is not None and orders is not None:
        raise click.UsageError("--orders is for generated orders, --input brings its own.")
    from demo.run import run_demo

    options = DemoOptions(
        input=input_,
        orders=ORDERS if orders is None else orders,
        loss=loss,
        duplicate=duplicate,
        reorder=reorder,
        seed=random.SystemRandom().getrandbits(32) if seed is None else seed,
        with_spark=not no_spark,
        http=http,
    )
    summary = run_demo(stack_of(settings), options)
    if as_json:
        data_json(summary)
    else:
        _show_summary(summary)
    for objection in summary.not_whole:
        talk(f"Not whole: {objection}")
    return ExitCode.CLEAN if summary.whole else ExitCode.FINDINGS


def _show_summary(summary: Summary) -> None:
    from demo.summary import summary_rows

    table(("what", "result"), summary_rows(summary))
    data("")
    data("The servers stay up (chainctl stack down stops them). To look at what is left:")
    width = max(map(len, summary.commands.values()), default=0)
    for command, line in summary.commands.items():
        data(f"  {line:{width}}   {_SHOWS[command]}")


_SHOWS: Final = {
    "status": "heads, leader and receivers of the chain",
    "receive": "the whole chain once more, in order, into a journal of its own",
    "verify": "verifies database, topic and journal, and compares them",
    "console": "all of it live in a browser, on loopback",
}
"""What the printed commands do."""


# -- bench ----------------------------------------------------------------------------------------

REPEATS: Final = 5
REPEATS_MAX: Final = 1_000
MINUTES_MAX: Final = 24 * 60


@click.command(cls=Command)
@click.option("--quick", is_flag=True, help="Three minutes: fewer questions, orders and repeats.")
@click.option(
    "--only", multiple=True, metavar="QUESTION",
    help="Ask this one alone; may be given several times. --list shows them.",
)  # fmt: skip
@click.option("--resume", is_flag=True, help="Continue an interrupted call from what it saved.")
@click.option(
    "--repeats", type=Integer(1, REPEATS_MAX), metavar="COUNT",
    help=f"Repeats of every arm.  [default: {REPEATS}, with --quick 1]",
)  # fmt: skip
@click.option(
    "--minutes", type=Span(MINUTES_MAX * 60, unit="m"), metavar="SPAN",
    callback=lambda _context, _option, seconds: None if seconds is None else seconds / 60,
    help="End after so long (2h; in minutes without a unit), the servers left up for --resume.",
)  # fmt: skip
@click.option("--huge", is_flag=True, help="Chains of 10^8 rows too: an hour, 40 GB of disk.")
@click.option(
    "--output", type=click.Path(path_type=Path, file_okay=False), metavar="FOLDER",
    help="Where results go.  [default: benchmarks/results, with --quick its folder quick]",
)  # fmt: skip
@click.option("--report", is_flag=True, help="Only make table and figures again.")
@click.option("--list", "is_list", is_flag=True, help="Only list the questions and their times.")
@uses_settings("stack_dir")
def bench(
    settings: Settings,
    quick: bool,
    only: tuple[str, ...],
    resume: bool,
    repeats: int | None,
    minutes: float | None,
    huge: bool,
    output: Path | None,
    report: bool,
    is_list: bool,
) -> ExitCode:
    """Measure the engine on this machine, beside what one might take instead.

    Starts a PostgreSQL and a Kafka of its own, empty. Each repeat of each arm is saved when it
    ends. Every chain is proven whole after its run; a run whose chain is not has no figure, and
    the exit code is 1.
    """  # fmt: skip
    _require_checkout()
    from benchmarks.host import RESULTS
    from benchmarks.load import Scope
    from benchmarks.questions import NAMES, QUICK

    for name in only:
        if name not in NAMES:
            known = ", ".join(NAMES)
            raise click.BadParameter(f"{name!r} is none of {known}.", param_hint="'--only'")
    names = only or (QUICK if quick else NAMES)
    scope = Scope(is_quick=quick, is_huge=huge, repeats=repeats or (1 if quick else REPEATS))
    if is_list:
        _list(names, scope)
        return ExitCode.CLEAN
    folder = (output or (RESULTS / "quick" if quick else RESULTS)).absolute()
    failed = 0
    if not report:
        from benchmarks.session import Options, measure

        options = Options(
            scope=scope,
            folder=folder,
            resumes=resume,
            minutes=minutes,
            stack_directory=Path(settings.stack_dir) if settings.stack_dir else None,
        )
        failed = measure(names, options)
    from benchmarks.report import write_report

    for path in write_report(folder):
        data(str(path))
    return ExitCode.FINDINGS if failed else ExitCode.CLEAN


def _require_checkout() -> None:
    """Raise UsageError where only the package is installed, without the checkout."""
    try:
        import benchmarks  # noqa: F401 - whether it is there
    except ModuleNotFoundError:
        raise click.UsageError(
            "the benchmarks are in the checkout of orderchain, not in the package."
        ) from None


def _list(names: tuple[str, ...], scope: Scope) -> None:
    from benchmarks.session import listed

    for name, runs, minutes, title in listed(names, scope):
        data(f"{name:13} {runs:4} runs  about {minutes:5.1f} min  {title}")
