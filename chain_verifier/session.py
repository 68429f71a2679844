"""A Spark session for a verification: quiet, on loopback, with its connectors."""

from __future__ import annotations

import os
import sys
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from chain_verifier.java import EXPECTED, require_java
from chain_verifier.packages import OWN_JARS, packages_for
from orderchain.clients.kafka_options import SPARK_REDACTION_REGEX
from orderchain.errors import ConnectError, RefusedError, SettingError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

LOCAL_MASTER: Final = "local[*]"

LOG_FILE: Final = "spark.log"

_SHUFFLE_PARTITIONS: Final = 4
"""A check shuffles one row per bucket, so more partitions would only be more tasks to start."""

_COMMON: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.shuffle.partitions": str(_SHUFFLE_PARTITIONS),
    # Plans here are small and known; planning them again after each stage costs more than it gains.
    "spark.sql.adaptive.enabled": "false",
    # Records of a topic that cross to Python at once: each may hold a frame of many rows.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "32",
    # Where in our code a column was made helps nobody, and was two of three calls to Java.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    # What reaches the driver are buckets and samples; whoever wants more has made a mistake.
    "spark.driver.maxResultSize": "256m",
    # Rows are never cached, so a lost task has to read its part again: the outcome is the same.
    "spark.sql.catalogImplementation": "in-memory",
    # The key of a client's certificate and the login's line are options of a topic's reader.
    "spark.redaction.regex": SPARK_REDACTION_REGEX,
}
_LOCAL: Final = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}

_SHORT_RUN: Final = {"spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"}
"""Java's quick compiler alone: a check of a million rows ends before the thorough one has paid for
itself (measured: Spark's start and a first check of 200,000 rows take 18 s of CPU time, not 28)."""


@contextmanager
def open_session(
    master: str | None, *, is_long_run: bool = False, kafka: bool = False
) -> Iterator[SparkSession]:
    """Start Spark, give its session, stop it. `kafka` loads the connector that reads a topic.

    Without a `master` it runs inside a Java process of our own, tuned for a short run unless told
    that this one is long. Where a session is at work already, it is given as it is, and left on.

    What Java and Spark have to say goes to a file in a temporary folder, which is removed at the
    end. Raises SettingError when there is no Java or Spark does not start, ConnectError when its
    connectors were never fetched and cannot be now.

    Started by `spark-submit`, everything that was said there holds, the master above all; only a
    `master` given here comes before it.
    """
    active = SparkSession.getActiveSession()
    if active is not None:
        yield active
        return
    if is_submitted(os.environ):
        session = _submitted(master)
        try:
            yield session
        finally:
            with suppress(Py4JError, OSError):
                session.stop()
        return
    require_java(os.environ)
    packages = ",".join(packages_for(kafka=kafka))
    with tempfile.TemporaryDirectory(prefix="chain-verifier-") as folder:
        session = _start(master, Path(folder), {} if is_long_run else _SHORT_RUN, packages)
        try:
            yield session
        finally:
            # A Java process that died must not hide the error that told of it.
            with suppress(Py4JError, OSError):
                session.stop()


def is_submitted(environ: Mapping[str, str]) -> bool:
    """Say whether `spark-submit` runs this process, whose Java is at work already."""
    return "PYSPARK_GATEWAY_PORT" in environ


def _submitted(master: str | None) -> SparkSession:
    """Return the session of `spark-submit`: jars, memory and master are as it was told."""
    builder: Any = SparkSession.builder
    for name, value in _COMMON.items():
        builder = builder.config(name, value)
    if master:
        builder = builder.master(master)
    try:
        session: SparkSession = builder.getOrCreate()
    except (PySparkRuntimeError, Py4JError, OSError) as error:
        text = str(error).strip() or type(error).__name__
        raise SettingError("spark-submit", text.splitlines()[0], "a Spark that starts") from error
    _prepare(session)
    return session


def _prepare(session: SparkSession) -> None:
    session.sparkContext.setLogLevel("ERROR")
    if "PYSPARK_PYTHON" not in os.environ:
        # Frames and seals are taken apart by our own code: the workers need this very environment.
        session.sparkContext.pythonExec = sys.executable


def _start(master: str | None, folder: Path, tuning: dict[str, str], packages: str) -> SparkSession:
    builder: Any = SparkSession.builder.appName("chain-verifier")
    settings = {
        **_COMMON,
        **(_LOCAL if (master or LOCAL_MASTER).startswith("local") else {}),
        **({} if master else tuning),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.jars.packages": packages,
        "spark.jars.excludes": ",".join(OWN_JARS),
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    log = folder / LOG_FILE
    try:
        with _error_output_to(log):
            session: SparkSession = builder.master(master or LOCAL_MASTER).getOrCreate()
    except (PySparkRuntimeError, OSError) as error:
        raise start_error(_text_of(log), str(error), packages) from error
    _prepare(session)
    return session


@contextmanager
def _error_output_to(path: Path) -> Iterator[None]:
    """Let the Java process inherit `path` as its stderr.

    Java and Ivy write there before any setting of Spark's is read, and a progress line of the
    caller's must not be torn apart by them.
    """
    with path.open("ab") as file:
        kept = os.dup(2)
        try:
            os.dup2(file.fileno(), 2)
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)


def start_error(log: str, error: str, packages: str) -> RefusedError:
    """Return what to tell of a Spark that did not start, by what it and Java wrote into `log`."""
    if _UNRESOLVED in log:
        return ConnectError("spark.jars.packages", packages, "to be fetched once over the network")
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return SettingError("java", lines[-1] if lines else error, EXPECTED)


_UNRESOLVED: Final = "unresolved dependency"
"""What Ivy writes of a jar that is neither in its cache nor to be had."""


def _text_of(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
