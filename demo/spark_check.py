"""Spark's verdict on what a demo has left, from a process that starts it meanwhile.

Spark's start takes longer than its check of a demo, and needs nothing of it: so it starts while
orders are sequenced.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import asynccontextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Struct

from demo.processes import (
    CheckingJob,
    Child,
    ContinueCommand,
    Pipe,
    SparkProgress,
    SparkReport,
    run_process,
)
from orderchain.errors import OrderchainError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from chainctl.output import ProgressBar
    from demo.scenario import Plan


SOURCES: Final = ("database", "journal:{journal}")
"""What Spark verifies for the demo itself; the topic would cost more seconds."""

EVERY_SOURCE: Final = ("database", "topic", "journal:{journal}")
"""What the printed command verifies."""

STEPS: Final = 3 + len(SOURCES)
"""Start, open, check each, compare."""

VERIFY_SECONDS: Final = 300.0
"""Spark's start and its smallest jobs take 10 to 20 s on 2 cores, on a slow machine a few times
that."""

VERIFY_ROWS_PER_SECOND: Final = 20_000
"""A pace that every machine keeps, for the deadline of a large input."""

LONG_ROWS: Final = 500_000
"""From this many rows on, Java's thorough compiler pays for itself."""


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


def require_spark() -> None:
    """Raise ModuleNotFoundError where the package of Spark is not installed."""
    if find_spec("pyspark") is None:
        raise ModuleNotFoundError("No module named 'pyspark'", name="pyspark")


@asynccontextmanager
async def starting_spark(plan: Plan) -> AsyncIterator[Child]:
    """Start Spark in a process of its own, which has ended when the block ends."""
    job = CheckingJob(
        database=plan.setup.audit_database,
        chain_id=plan.setup.chain_id,
        journal=str(plan.journal),
        is_long=plan.rows >= LONG_ROWS,
    )
    verifier = await Child.start("verifier", "demo.spark_check", job)
    try:
        yield verifier
    finally:
        await verifier.stop()


async def checked_by(verifier: Child, rows: int, bar: ProgressBar) -> dict[str, Any]:
    """Have Spark verify database and journal, and compare them; return its report.

    Raises ChildDied when the check did not complete, OrderchainError when it takes too long.
    """
    await verifier.send(ContinueCommand())
    try:
        async with asyncio.timeout(VERIFY_SECONDS + rows / VERIFY_ROWS_PER_SECOND):
            while not isinstance(report := await verifier.report(), SparkReport):
                if isinstance(report, SparkProgress):
                    bar.move_to(report.done, report.step)
    except TimeoutError:
        raise OrderchainError("Spark did not answer in time") from None
    return report.report


# -- the process -----------------------------------------------------------------------------------


async def run_spark_check(pipe: Pipe) -> None:
    """Do the job that the demo gives: start Spark, wait for the word, verify.

    Everything but the wait blocks: there is nothing else to do here.
    """
    from chain_verifier.config import DatabaseSource, JournalSource, VerifyRequest
    from chain_verifier.spark.session import open_session
    from chain_verifier.spark.verify import verify

    job = await pipe.job(CheckingJob)
    pipe.report(SparkProgress(step="starting Spark", done=0))
    step, steps_done = "", 0

    def begin(line: str) -> None:
        nonlocal step, steps_done
        step, steps_done = line.replace(f"journal:{job.journal}", "journal"), steps_done + 1
        pipe.report(SparkProgress(step=step, done=steps_done))

    def follow(done: int, tasks: int) -> None:
        pipe.report(SparkProgress(step=step, done=steps_done + done / max(tasks, 1)))

    with open_session(None, is_long_run=job.is_long) as spark:
        await pipe.command()
        sources = DatabaseSource(database=job.database), JournalSource(path=job.journal)
        request = VerifyRequest(chain_id=job.chain_id, sources=sources)
        report = verify(request, spark, begin, follow)
        # Before Spark has stopped: that takes a second, which nobody needs to wait for.
        pipe.report(SparkReport(report=report.to_dict()))


if __name__ == "__main__":
    sys.exit(run_process(run_spark_check))
