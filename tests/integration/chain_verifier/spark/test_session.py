"""A session that others use too: calls that are cut cost it nothing, and no other stops it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from chain_verifier.spark.session import open_session
from tests.hanging import drop_call_to_java

if TYPE_CHECKING:
    from types import FrameType

    from pyspark.sql import SparkSession

ENDLESS = "reflect('java.lang.Thread', 'sleep', 3600000L) IS NULL"


TWO_SESSIONS = """
from chain_verifier.spark.session import open_session

with open_session(None) as spark:
    assert spark.range(3).count() == 3
with open_session(None, kafka=True) as spark:
    topic = spark.read.format("kafka").option("kafka.bootstrap.servers", "127.0.0.1:1")
    print(*topic.option("subscribe", "t").load().columns)
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
    assert used == [spark]
    assert spark.range(3).count() == 3


@pytest.mark.nightly
def test_process_that_has_verified_without_a_topic_can_read_one_later() -> None:
    done = subprocess.run(
        [sys.executable, "-c", TWO_SESSIONS], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert {"key", "value", "offset"} <= set(done.stdout.split())
