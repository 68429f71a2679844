"""The verifier's verdict on what a demo has left: Spark's, or without it the local verifier's.

Spark's start takes longer than its check of a demo, and needs nothing of it: so a process of its
own starts it first of all, beside the servers and the orders.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import count
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Struct

from chain_kernel.errors import OrderchainError
from orderchain_demo.processes import (
    CheckingJob,
    Child,
    Pipe,
    SparkProgress,
    SparkReport,
    VerifyCommand,
    run_process,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from chain_verifier.config import VerifyRequest
    from chainctl.event_loop import OneLoop
    from chainctl.output import ProgressBar
    from orderchain_demo import DemoOptions
    from orderchain_demo.scenario import Plan


SOURCES: Final = ("database", "journal:{journal}")
"""What is verified for the demo itself; the topic would cost more seconds."""

STEPS: Final = 3 + len(SOURCES)
"""Start, open, check each, compare."""

VERIFY_SECONDS: Final = 300.0
"""Spark's start and its smallest jobs take 10 to 20 s on 2 cores, on a slow machine a few times
that."""

VERIFY_ROWS_PER_SECOND: Final = 20_000
"""A pace that every machine keeps, for the deadline of a large input."""

LONG_ROWS: Final = 500_000
LONG_BYTES: Final = 20 * 2**20
"""From so many rows, or a file of so many bytes on, Java's thorough compiler pays for itself."""


# -- the verdict -----------------------------------------------------------------------------------


class VerifiedSource(Struct, frozen=True):
    """What the report says of one source."""

    source: str
    verdict: str
    rows: int
    counts: dict[str, int]
    """Findings by kind."""


class VerifiedComparison(Struct, frozen=True):
    """What the report says of two sources."""

    source: str
    against: str
    is_equal: bool
    row_counts: dict[str, int]


class VerifyReport(Struct, frozen=True):
    """The part of the report that the demo judges by."""

    is_clean: bool
    sources: list[VerifiedSource]
    comparisons: list[VerifiedComparison]


def objections(checked: dict[str, Any], rows: int) -> list[str]:
    """Return what a report has against complete and equal sources of `rows` rows, one per line."""
    report = msgspec.convert(checked, VerifyReport)
    found = [
        f"{source.source}: {source.rows} rows, {source.verdict}{_counted(source.counts)}; "
        f"{rows} in the input"
        for source in report.sources
        if (source.verdict, source.rows) != ("complete", rows)
    ]
    found += [
        f"{compared.source} and {compared.against} differ{_counted(compared.row_counts)}"
        for compared in report.comparisons
        if not compared.is_equal
    ]
    verified = len(report.sources), len(report.comparisons)
    due = len(SOURCES), len(SOURCES) - 1
    if verified != due:
        found.append(
            f"{verified[0]} sources and {verified[1]} comparisons verified, "
            f"due were {due[0]} and {due[1]}"
        )
    if not report.is_clean and not found:
        found.append("the verifier's report is not clean")
    return found


def _counted(findings: dict[str, int]) -> str:
    shown = ", ".join(f"{count} {kind}" for kind, count in findings.items())
    return f" ({shown})" if shown else ""


# -- as the demo sees it ---------------------------------------------------------------------------


Check = Callable[["Plan", "ProgressBar"], dict[str, Any]]
"""Verifies database and journal, compares them, and returns the report."""


@contextmanager
def checker(loop: OneLoop, options: DemoOptions) -> Iterator[Check]:
    """Yield what verifies once all is delivered, and start Spark for it; it ends with the block.

    Raises ModuleNotFoundError where the package of Spark is not installed.
    """
    if not options.with_spark:
        yield checked_locally
        return
    if find_spec("pyspark") is None:
        error = ModuleNotFoundError("No module named 'pyspark'", name="pyspark")
        error.add_note("--no-spark does without")
        raise error
    verifier = loop.run(
        Child.start(
            "verifier", "orderchain_demo.spark_check", CheckingJob(is_long=_is_long(options))
        )
    )
    try:
        yield lambda plan, bar: loop.run(_checked_by(verifier, plan, bar))
    finally:
        loop.run(verifier.stop())


def _is_long(options: DemoOptions) -> bool:
    if options.input is None:
        return options.orders >= LONG_ROWS
    return options.input.stat().st_size >= LONG_BYTES


def checked_locally(plan: Plan, bar: ProgressBar) -> dict[str, Any]:
    """Verify without Spark, in this process; a Check."""
    from chain_verifier.local.verify import verify_locally

    setup, journal, done = plan.setup, str(plan.journal), count()
    request = _request(setup.audit_database, setup.chain_id, journal)

    def begin(line: str) -> None:
        bar.move_to(next(done), _shown(line, journal))

    return verify_locally(request, begin).to_dict()


async def _checked_by(verifier: Child, plan: Plan, bar: ProgressBar) -> dict[str, Any]:
    """Have Spark verify; as a Check.

    Raises ChildDied when the check did not complete, OrderchainError when it takes too long.
    """
    await verifier.send(
        VerifyCommand(
            database=plan.setup.audit_database,
            chain_id=plan.setup.chain_id,
            journal=str(plan.journal),
        )
    )
    try:
        async with asyncio.timeout(VERIFY_SECONDS + plan.rows / VERIFY_ROWS_PER_SECOND):
            while not isinstance(report := await verifier.report(), SparkReport):
                if isinstance(report, SparkProgress):
                    bar.move_to(report.done, report.step)
    except TimeoutError:
        raise OrderchainError("Spark did not answer in time") from None
    return report.report


def _shown(line: str, journal: str) -> str:
    return line.replace(f"journal:{journal}", "journal")


def _request(database: str, chain_id: int, journal: str) -> VerifyRequest:
    from chain_verifier.config import DatabaseSource, JournalSource, VerifyRequest

    sources = DatabaseSource(database=database), JournalSource(path=journal)
    return VerifyRequest(chain_id=chain_id, sources=sources)


# -- the process -----------------------------------------------------------------------------------


async def run_spark_check(pipe: Pipe) -> None:
    """Do the job that the demo gives: start Spark, wait for the word, verify.

    Everything but the wait blocks: there is nothing else to do here.
    """
    from chain_verifier.spark.session import open_session
    from chain_verifier.spark.verify import verify

    job = await pipe.job(CheckingJob)
    pipe.report(SparkProgress(step="starting Spark", done=0))
    journal, steps_done = "", 0

    def begin(line: str) -> None:
        nonlocal steps_done
        steps_done += 1
        pipe.report(SparkProgress(step=_shown(line, journal), done=steps_done))

    with open_session(None, is_long_run=job.is_long) as spark:
        asked = await pipe.command()
        if not isinstance(asked, VerifyCommand):
            raise OrderchainError(f"command was {asked}, expected to verify")
        journal = asked.journal
        request = _request(asked.database, asked.chain_id, asked.journal)
        report = verify(request, spark, begin)
        # Before Spark has stopped: that takes a second, which nobody needs to wait for.
        pipe.report(SparkReport(report=report.to_dict()))


if __name__ == "__main__":
    sys.exit(run_process(run_spark_check))
