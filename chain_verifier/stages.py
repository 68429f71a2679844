"""How far Spark is with what it works on, asked of it while it works."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from threading import Event, Thread
from typing import TYPE_CHECKING, Final

from py4j.protocol import Py4JError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark import StatusTracker
    from pyspark.sql import SparkSession

    Tell = Callable[[int, int], None]

LOOK_SECONDS: Final = 0.25
"""How often Spark is asked: a bar is for the eye."""


@contextmanager
def watched_stages(spark: SparkSession, tell: Tell | None) -> Iterator[None]:
    """While the block runs, `tell` how many tasks of the stages at work are done, and of how many.

    Told by a thread of its own; without `tell` nobody asks.
    """
    if tell is None:
        yield
        return
    ended = Event()
    tracker = spark.sparkContext.statusTracker()
    watcher = Thread(target=_watch, args=(tracker, tell, ended), name="spark-stages", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()


def _watch(tracker: StatusTracker, tell: Tell, ended: Event) -> None:
    # A Java process that died is told of by whoever waits for its answer.
    with suppress(Py4JError, OSError):
        while not ended.wait(LOOK_SECONDS):
            infos = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
            found = [info for info in infos if info is not None]
            if found:
                done = sum(info.numCompletedTasks for info in found)
                tell(done, sum(info.numTasks for info in found))
