"""A session that others use too: calls that are cut cost it nothing, and no other stops it."""

import asyncio
import os
import random
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType

import pytest
from pyspark.sql import SparkSession

from chain_kernel.sql import AUDITOR
from chain_verifier.config import DatabaseSource, VerifyRequest
from chain_verifier.spark.session import open_session
from chain_verifier.spark.verify import verify
from tests.hanging import drop_call_to_java
from tests.integration.chain_verifier.conftest import MakeParquet
from tests.integration.chain_verifier.planted_faults import CHAIN_ID, chain_of
from tests.integration.chain_verifier.stored_rows import store
from tests.lanes import at_night
from tests.programs import completed, output_of

ROWS = chain_of(random.Random(14), 30)
ENDLESS = "reflect('java.lang.Thread', 'sleep', 3600000L) IS NULL"


WORKERS = """
from chain_verifier.spark.session import open_session

with open_session(None) as spark:
    print(spark.range(3).mapInArrow(lambda batches: batches, "id bigint").count())
"""


class Cut(BaseException):
    """Not an Exception, like the failure that pytest-timeout raises: py4j closes nothing for it."""


def test_later_calls_read_their_own_answers(spark: SparkSession) -> None:
    def cut(number: int, frame: FrameType | None) -> None:
        drop_call_to_java()
        raise Cut

    kept = signal.signal(signal.SIGUSR1, cut)
    ended = threading.Event()
    tracker = spark.sparkContext.statusTracker()

    def cut_when_it_runs() -> None:
        while not tracker.getActiveJobsIds():
            if ended.wait(0.02):
                return
        os.kill(os.getpid(), signal.SIGUSR1)

    cutter = threading.Thread(target=cut_when_it_runs)
    cutter.start()
    try:
        with pytest.raises(Cut):
            spark.range(1).where(ENDLESS).collect()
    finally:
        ended.set()
        cutter.join()
        signal.signal(signal.SIGUSR1, kept)
    assert [spark.range(rows).count() for rows in (7, 3)] == [7, 3]


def test_session_of_another_thread_is_used_and_left_open(spark: SparkSession) -> None:
    used: list[SparkSession] = []

    def use() -> None:
        with open_session(None) as session:
            used.append(session)

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    assert used != [spark]
    assert used[0].sparkContext is spark.sparkContext
    assert spark.range(3).count() == 3


def test_verification_changes_no_setting_that_other_threads_see(
    spark: SparkSession, database: str, role_dsn: Callable[[str], str], parquet_of: MakeParquet
) -> None:
    asyncio.run(store(database, ROWS))
    # Seals and the ends of Parquet files are read under settings of their own.
    sources = (DatabaseSource(database=role_dsn(AUDITOR)), parquet_of(ROWS))
    request = VerifyRequest(chain_id=CHAIN_ID, sources=sources, seals=True)
    before = dict(spark.conf.getAll)
    changes: list[dict[str, str]] = []
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(verify, request, spark)
        while not running.done():
            changes += [dict(spark.conf.getAll)] if dict(spark.conf.getAll) != before else []
    assert running.result().counts == {}
    assert changes == []


def test_session_is_the_active_one_of_its_thread_afterwards(
    spark: SparkSession, parquet_of: MakeParquet, tmp_path: Path
) -> None:
    request = VerifyRequest(
        chain_id=CHAIN_ID,
        sources=(parquet_of(ROWS[:9] + ROWS[10:]),),
        findings_folder=str(tmp_path / "found"),
    )
    assert verify(request, spark).counts == {"gap": 1}
    spark.conf.set("orderchain.of.this.session", "yes")
    assert SparkSession.active().conf.get("orderchain.of.this.session", None) == "yes"
    spark.conf.unset("orderchain.of.this.session")


def test_session_of_our_own_sets_what_is_ours_whatever_variables_say() -> None:
    wrong = {
        "PYSPARK_PYTHON": "/no/python",
        "PYSPARK_DRIVER_PYTHON": "/no/python",
        "SPARK_LOCAL_HOSTNAME": "no-host.invalid",
        "SPARK_LOCAL_IP": "203.0.113.7",
    }
    shown = output_of(sys.executable, "-c", WORKERS, env=os.environ | wrong)
    assert shown.strip() == "3"


@pytest.mark.parametrize(
    "setting",
    [
        "SPARK_HOME=/nowhere",
        "PYSPARK_SUBMIT_ARGS=--no-such-option pyspark-shell",
        *at_night(
            "PYSPARK_SUBMIT_ARGS=--conf spark.executor.memory=1g",
            "PYSPARK_SUBMIT_ARGS=--conf spark.executor.memory=x pyspark-shell",
            "PYSPARK_SUBMIT_ARGS=--conf spark.sql.files.maxPartitionBytes=x pyspark-shell",
            "JAVA_TOOL_OPTIONS=-Xnonsense",
            "JAVA_HOME=/nowhere",
        ),
    ],
)
def test_command_whose_spark_does_not_start_is_refused_by_the_name_of_the_variable(
    tmp_path: Path, setting: str
) -> None:
    variable, _, value = setting.partition("=")
    command = (sys.executable, "-m", "chainctl", "verify", "--chain", CHAIN_ID)
    source = f"parquet:{tmp_path}"
    done = completed(*command, "--source", source, env=os.environ | {variable: value})
    named = "java" if variable == "JAVA_HOME" else variable
    assert (done.returncode, done.stdout) == (2, ""), done
    assert f"chainctl: {named} was " in done.stderr
