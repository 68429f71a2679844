"""Spark's verdict on what a demo has left, by `chainctl verify` in a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from asyncio.subprocess import PIPE
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Struct

from chainctl.exits import ExitCode
from demo.processes import STOP_SECONDS, ChildDied
from orderchain.errors import OrderchainError

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import Sequence
    from pathlib import Path

    from demo.chain_setup import Stage


SOURCES: Final = ("database", "journal:{journal}")
"""What Spark verifies for the demo itself; the topic would cost more seconds."""

EVERY_SOURCE: Final = ("database", "topic", "journal:{journal}")
"""What the printed command verifies."""

VERIFY_SECONDS: Final = 300.0
"""Spark's start and its smallest jobs take 10 to 20 s on 2 cores, on a slow machine a few times
that."""

VERIFY_ROWS_PER_SECOND: Final = 20_000
"""A pace that every machine keeps, for the deadline of a large input."""


class VerifiedSource(Struct, frozen=True):
    """What `chainctl verify` says of one source."""

    source: str
    verdict: str
    rows: int
    counts: dict[str, int]
    """Findings by kind."""


class VerifiedComparison(Struct, frozen=True):
    """What `chainctl verify` says of two sources."""

    source: str
    against: str
    is_equal: bool
    row_counts: dict[str, int]


class VerifyReport(Struct, frozen=True):
    """The part of what `chainctl verify` prints that the demo judges by."""

    sources: list[VerifiedSource]
    comparisons: list[VerifiedComparison]


class SparkVerdict(Struct, frozen=True, kw_only=True):
    """What `chainctl verify` said."""

    exit_code: int
    report: dict[str, Any]
    """Its JSON, as it was printed."""

    def objections(self, rows: int) -> list[str]:
        """Return what it found against complete and equal sources of `rows` rows, one per line."""
        report = msgspec.convert(self.report, VerifyReport)
        objections = [
            f"{source.source}: {source.rows} rows, {source.verdict}{_counted(source.counts)}; "
            f"{rows} in the input"
            for source in report.sources
            if (source.verdict, source.rows) != ("complete", rows)
        ]
        objections += [
            f"{compared.source} and {compared.against} differ{_counted(compared.row_counts)}"
            for compared in report.comparisons
            if not compared.is_equal
        ]
        verified = len(report.sources), len(report.comparisons)
        due = len(SOURCES), len(SOURCES) - 1
        if verified != due:
            objections.append(
                f"{verified[0]} sources and {verified[1]} comparisons verified, "
                f"due were {due[0]} and {due[1]}"
            )
        if self.exit_code != ExitCode.CLEAN and not objections:
            objections.append(f"the verifier ended with {self.exit_code}")
        return objections


def _counted(findings: dict[str, int]) -> str:
    told = ", ".join(f"{count} {kind}" for kind, count in findings.items())
    return f" ({told})" if told else ""


def verify_arguments(stage: Stage, journal: Path, sources: Sequence[str]) -> list[str]:
    """Return the arguments of `chainctl` that verify the demo's chain in `sources`, and compare
    them.
    """
    arguments = ["verify", "--chain", str(stage.chain_id)]
    for source in sources:
        arguments += ["--source", source.format(journal=journal)]
    return arguments


async def verify(stage: Stage, journal: Path, rows: int) -> SparkVerdict:
    """Have Spark verify database and journal, and compare them.

    Raises ChildDied when the check did not complete.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "chainctl", *verify_arguments(stage, journal, SOURCES), "--json",
        stdout=PIPE, stderr=PIPE, start_new_session=True, env=os.environ | _settings(stage),
    )  # fmt: skip
    try:
        async with asyncio.timeout(VERIFY_SECONDS + rows / VERIFY_ROWS_PER_SECOND):
            stdout, stderr = await process.communicate()
    except TimeoutError:
        raise OrderchainError("Spark did not answer in time") from None
    finally:
        await _end(process)
    if process.returncode not in (ExitCode.CLEAN, ExitCode.FINDINGS):
        lines = stderr.decode(errors="replace").split("\n")
        last_line = next((line for line in reversed(lines) if line.strip()), "")
        raise ChildDied("verifier", process.returncode, last_line.strip())
    return SparkVerdict(exit_code=process.returncode, report=msgspec.json.decode(stdout))


def _settings(stage: Stage) -> dict[str, str]:
    """Return what must override any other database in the caller's environment."""
    dsn = stage.audit_database
    return {"CHAINCTL_DATABASE": dsn, "CHAINCTL_AUDIT_DATABASE": dsn, "CHAINCTL_KAFKA": stage.kafka}


async def _end(process: Process) -> None:
    """End the verifier and its Java, which share a session of their own, if they still run."""
    if process.returncode is not None:
        return
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_SECONDS):
                await process.wait()
                return
