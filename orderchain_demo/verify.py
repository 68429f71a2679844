"""The verifier's verdict on what a demo has left: Spark's, or without it the local verifier's.

Spark's start takes longer than its check of a demo, and needs nothing of it: so a program of its
own starts it first of all, beside the servers and the orders.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from threading import Timer
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from chain_kernel.errors import RetryError
from orderchain_demo.programs import Program, receive, report, run_program

if TYPE_CHECKING:
    from chain_verifier.config import VerifyRequest

VERIFY_SECONDS: Final = 300.0
"""Spark's start and its smallest jobs take 10 to 20 s on 2 cores, on a slow machine a few times
that."""

VERIFY_ROWS_PER_SECOND: Final = 20_000
"""A pace that every machine keeps, for the deadline of a large input."""

LONG_ROWS: Final = 500_000
"""From so many rows on, Java's thorough compiler pays for itself."""


class SparkJob(Struct, frozen=True, kw_only=True):
    """The first message to Spark's process: the chain is made meanwhile."""

    is_long: bool


class VerifyJob(Struct, frozen=True, kw_only=True):
    """The check of the demo itself: database and journal. The topic would cost seconds."""

    database: str
    chain_id: int
    receiver: str
    """The matching service: its states are compared with those of a replay."""
    journal: str
    rows: int

    def request(self) -> VerifyRequest:
        """Return it as the verifier takes it."""
        from chain_verifier.config import DatabaseSource, JournalSource, VerifyRequest

        sources = DatabaseSource(database=self.database), JournalSource(path=self.journal)
        return VerifyRequest(chain_id=self.chain_id, sources=sources)


class Verified(Struct, frozen=True):
    """The verifier's report, as `chainctl verify --json` prints it."""

    report: dict[str, Any]
    wrong_books: list[dict[str, Any]] | None = None
    """Books of the matching service that are not what a replay of the chain gives, as `verify
    replay --json` names them; None without Spark."""
    second_version: list[dict[str, Any]] | None = None
    """For each book, the first order on which its second version differs; None without Spark."""


def start_spark(rows: int) -> Program:
    """Start Spark for a chain of about so many rows.

    Raises ModuleNotFoundError where the package of Spark is not installed.
    """
    if find_spec("pyspark") is None:
        error = ModuleNotFoundError("No module named 'pyspark'", name="pyspark")
        error.add_note("--no-spark does without")
        raise error
    return Program("verifier", "orderchain_demo.verify", SparkJob(is_long=rows >= LONG_ROWS))


def verified(job: VerifyJob, spark: Program | None) -> Verified:
    """Return the report on what a demo has left, by Spark or without it.

    Raises OrderchainError when there is none, or none in time.
    """
    if spark is None:
        from chain_verifier.local.verify import verify_locally

        return Verified(verify_locally(job.request()).to_dict())
    deadline = Timer(VERIFY_SECONDS + job.rows / VERIFY_ROWS_PER_SECOND, spark.kill)
    deadline.start()
    try:
        spark.write(job)
        return spark.read(Verified)
    finally:
        deadline.cancel()


def objections(found: dict[str, Any], rows: int) -> list[str]:
    """Return what a report has against complete and equal sources of `rows` rows, one per line."""
    sources = found["sources"]
    lines = [
        f"{source['source']}: {source['rows']} rows, {source['verdict']}; {rows} in the input"
        for source in sources
        if (source["verdict"], source["rows"]) != ("complete", rows)
    ]
    compared = len(sources), len(found["comparisons"])
    if compared != (2, 1):
        lines.append(f"{compared[0]} sources and {compared[1]} comparisons, due were 2 and 1")
    if not found["is_clean"]:
        lines.append("the verifier found faults: verify --demo names them")
    return lines


def main() -> None:
    """Start Spark, wait for the word, verify."""
    from chain_verifier.config import DatabaseSource
    from chain_verifier.dataframe.stored import differences
    from chain_verifier.spark.session import open_session
    from chain_verifier.spark.verify import verify
    from orderchain_demo.books import BOOKS, SECOND

    with open_session(None, is_long_run=receive(SparkJob).is_long) as spark:
        job = receive(VerifyJob)
        found = verify(job.request(), spark)
        database = DatabaseSource(database=job.database)
        # Each order is compared: an order that is cancelled soon leaves the same books.
        books = differences(
            spark, BOOKS, database, job.chain_id, f"receiver:{job.receiver}",
            candidate=SECOND, compared_rows=1,
        )  # fmt: skip
        if not books.states:
            raise RetryError("the matching service has stored no book to compare")
        # Before Spark has stopped: that takes a second, and the report needs none of it.
        second = [each.to_dict() for each in books.versions.divergences] if books.versions else []
        report(Verified(found.to_dict(), list(books.differences), second))


if __name__ == "__main__":
    sys.exit(run_program(main))
