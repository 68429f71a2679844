"""`chainctl bench`: measures the engine on this machine, beside the alternatives.

The benchmarks are part of the checkout, not of the installed package.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from chainctl.exits import ExitCode
from chainctl.options import Integer, uses_settings
from chainctl.output import data

if TYPE_CHECKING:
    from benchmarks.load import Scope
    from chainctl.settings import Settings

REPEATS: Final = 5
REPEATS_MAX: Final = 1_000
MINUTES_MAX: Final = 24 * 60


class _Minutes(click.FloatRange):
    """A time span in minutes."""

    name = "number"

    def __init__(self) -> None:
        super().__init__(0, MINUTES_MAX, min_open=True)

    def convert(
        self, value: float, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return `value` as a number; refuse NaN, which no check of the bounds finds."""
        minutes = float(super().convert(value, param, ctx))
        if math.isnan(minutes):
            self.fail("NaN is no time span", param, ctx)
        return minutes


@click.command()
@click.option("--quick", is_flag=True, help="Three minutes: fewer questions, orders and repeats.")
@click.option(
    "--only", multiple=True, metavar="QUESTION",
    help="Ask this one alone; may be given several times. --list shows them.",
)  # fmt: skip
@click.option("--resume", is_flag=True, help="Go on with what an interrupted call has saved.")
@click.option(
    "--repeats", type=Integer(1, REPEATS_MAX), metavar="COUNT",
    help=f"Repeats of every arm.  [default: {REPEATS}, with --quick 1]",
)  # fmt: skip
@click.option(
    "--minutes", type=_Minutes(), metavar="NUMBER",
    help="End after so long, with the servers left up for --resume.",
)  # fmt: skip
@click.option("--huge", is_flag=True, help="Chains of 10^8 rows too: an hour, 40 GB of disk.")
@click.option(
    "--output", type=click.Path(path_type=Path, file_okay=False), metavar="FOLDER",
    help="Where results go.  [default: benchmarks/results, with --quick its folder quick]",
)  # fmt: skip
@click.option("--report", is_flag=True, help="Only make table and figures again.")
@click.option("--list", "is_list", is_flag=True, help="Only list the questions and their times.")
@uses_settings("stack_dir")
def command(
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
    from benchmarks.questions import QUICK, known_names

    for name in only:
        if name not in known_names():
            known = ", ".join(known_names())
            raise click.BadParameter(f"{name!r} is none of {known}.", param_hint="'--only'")
    names = only or (QUICK if quick else known_names())
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
