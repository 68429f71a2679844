"""`chainctl bench`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from chainctl.exits import ExitCode
from chainctl.options import Command, uses_settings
from chainctl.output import data
from chainctl.units import Integer

if TYPE_CHECKING:
    from benchmarks.load import Scope
    from chainctl.settings import Settings

REPEATS: Final = 5
REPEATS_MAX: Final = 1_000


@click.command(cls=Command)
@click.option("--quick", is_flag=True, help="Four minutes: fewer questions, orders and repeats.")
@click.option(
    "--only", multiple=True, metavar="QUESTION",
    help="Ask this one alone; may be given several times. --list shows them.",
)  # fmt: skip
@click.option(
    "--repeats", type=Integer(1, REPEATS_MAX), metavar="COUNT",
    help=f"Repeats of every arm.  [default: {REPEATS}, with --quick 1]",
)  # fmt: skip
@click.option(
    "--output", type=click.Path(path_type=Path, file_okay=False), metavar="FOLDER",
    help="Where results go.  [default: benchmarks/results, with --quick its folder quick]",
)  # fmt: skip
@click.option("--only-report", "report", is_flag=True, help="Only make table and figures again.")
@click.option(
    "--list",
    "is_list",
    is_flag=True,
    help="Only list the questions, and how long all of each takes.",
)
@uses_settings("stack_dir")
def bench(
    settings: Settings,
    quick: bool,
    only: tuple[str, ...],
    repeats: int | None,
    output: Path | None,
    report: bool,
    is_list: bool,
) -> ExitCode:
    """Measure the engine on this machine, beside what one might take instead.

    Starts a PostgreSQL and a Kafka of its own, empty. Each repeat of each arm is saved when it
    ends. Every chain is proven whole after its run; a run whose chain is not has no figure, and
    the exit code is 1.
    """  # fmt: skip
    from benchmarks.host import RESULTS
    from benchmarks.load import Scope
    from benchmarks.questions import NAMES, QUICK

    for name in only:
        if name not in NAMES:
            known = ", ".join(NAMES)
            raise click.BadParameter(f"{name!r} is none of {known}.", param_hint="'--only'")
    names = only or (QUICK if quick else NAMES)
    scope = Scope(is_quick=quick, repeats=repeats or (1 if quick else REPEATS))
    if is_list:
        _list(names, scope)
        return ExitCode.CLEAN
    folder = (output or (RESULTS / "quick" if quick else RESULTS)).absolute()
    failed = 0
    if not report:
        from benchmarks.session import measure

        stack_directory = Path(settings.stack_dir) if settings.stack_dir else None
        asked = [name for name in NAMES if name in names]
        failed = measure(asked, scope, folder, stack_directory)
    from benchmarks.report import write_report

    for path in write_report(folder):
        data(str(path))
    return ExitCode.FINDINGS if failed else ExitCode.CLEAN


def _list(names: tuple[str, ...], scope: Scope) -> None:
    from benchmarks.questions import question_of
    from benchmarks.session import steps

    for name in names:
        question, runs = question_of(name), len(steps(name, scope))
        data(f"{name:13} {runs:4} runs  {question.minutes:3} min in full  {question.title}")
