"""A session beside the caller's: it begins with the same settings, and has its own from then on.

A verification changes settings while it runs. Other threads of the caller's session see none of it.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import SparkSession

from chain_kernel.errors import SettingError
from chain_verifier.spark.errors import SPARK_ERRORS

if TYPE_CHECKING:
    from collections.abc import Iterator

ARROW_RECORDS: Final = "spark.sql.execution.arrow.maxRecordsPerBatch"

LEAVING_OUT: Final = (
    "spark.sql.files.ignoreCorruptFiles",
    "spark.sql.files.ignoreMissingFiles",
    "spark.sql.files.ignoreInvalidPartitionPaths",
)
"""Settings that leave files out of a frame, without a word."""

LEAVING_OUT_OF_HIVE: Final = ("spark.files.ignoreCorruptFiles", "spark.files.ignoreMissingFiles")
"""The same for tables of Hive."""

SETTINGS: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    # Records of a topic that cross to Python at once: each may hold a frame of many rows.
    ARROW_RECORDS: "32",
    # What was not read is not proven: a file that is broken or gone ends every read.
    **dict.fromkeys(LEAVING_OUT, "false"),
    # A folder by its path is no table: Spark leaves out some of its files.
    "spark.sql.runSQLOnFiles": "false",
    # A folder `chain_id=7` is a number.
    "spark.sql.sources.partitionColumnTypeInference.enabled": "true",
}
"""Settings that every verification needs, whatever the caller's session has."""


def require_all_files(spark: SparkSession) -> None:
    """Raise SettingError for a session that leaves files out of tables, without a word."""
    for setting in (*LEAVING_OUT, *LEAVING_OUT_OF_HIVE):
        if str(spark.conf.get(setting, "false")).lower() == "true":
            raise SettingError(setting, "true", "false: what a frame leaves out is not checked")


def is_connect(spark: SparkSession) -> bool:
    """Return whether a session is one over Connect: there is no Java in this process."""
    # Not `isinstance`: its module needs gRPC, which a session in this process does without.
    return type(spark).__module__.startswith("pyspark.sql.connect.")


@contextmanager
def own_session(spark: SparkSession) -> Iterator[SparkSession]:
    """Yield a session of the same Spark, with the tables, functions and settings of `spark`.

    Over Connect, Spark 4.0 copies the settings alone. The session ends with the block; Spark and
    `spark` go on.
    """
    java: Any = spark
    if is_connect(spark):
        own = _connected_beside(spark)
    else:
        own = SparkSession(spark.sparkContext, java._jsparkSession.cloneSession())
    try:
        for name, value in SETTINGS.items():
            own.conf.set(name, value)
        yield own
    except Exception:
        # Not after Ctrl-C: Java may still be answering the call that it has cut.
        with suppress(*SPARK_ERRORS, OSError):
            _leave(own, spark)
        raise
    _leave(own, spark)


def _connected_beside(spark: Any) -> SparkSession:  # noqa: ANN401 - the class needs gRPC
    if hasattr(type(spark), "cloneSession"):  # from 4.1 on
        cloned: SparkSession = spark.cloneSession()
        return cloned
    own: SparkSession = type(spark)(spark.client._builder)
    there = own.conf.getAll
    for name, value in spark.conf.getAll.items():
        if there.get(name) != value and own.conf.isModifiable(name):
            own.conf.set(name, value)
    return own


def _leave(own: Any, spark: SparkSession) -> None:  # noqa: ANN401 - either kind of session
    if is_connect(own):
        # Its `stop` would also end a server that the caller has started in this process.
        own.client.release_session()
        own.client.close()
        # The collector would close it again, and with it the threads that all sessions share
        # (PySpark 4.0, `SparkSession.__del__`): a query of the caller would fail at any moment.
        own.client.close = lambda: None
    else:
        # Making a frame from rows makes its session this thread's active one.
        spark.createDataFrame([], "id BIGINT")
