"""A test that hangs ends, and the report names the line where each task waits.

pytest-timeout ends a test by a signal, whose traceback ends in the event loop: it says nothing of
what the tasks wait for. And its timer ends with a failure, so a clean-up might hang forever.
Both timers stretch with the load of the machine (`deadlines.py`).
"""

import asyncio
import linecache
import signal
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

import pytest

from tests.deadlines import Deadline

CLEAN_UP_SECONDS: Final = 120.0
"""How long the clean-up of a test may take that failed; the last one stops the servers."""

REPEAT_SECONDS: Final = 30.0
"""The timer of a test fires again after this long: the failure that it raises is lost where a
callback of the loop runs, a task at the side, or a finalizer, and the test would hang forever."""


class _Phase:
    """Whether a set-up, a test or a clean-up runs: pytest makes a failure of what is raised there.

    Raised between them, where the report is made, it would end the whole run.
    """

    is_running = False


@contextmanager
def _running() -> Iterator[None]:
    _Phase.is_running = True
    try:
        yield
    finally:
        _Phase.is_running = False


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup() -> Generator[None, Any, Any]:
    """Let the timer end the set-up."""
    with _running():
        return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call() -> Generator[None, Any, Any]:
    """Let the timer end the test."""
    with _running():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_timeout_set_timer(settings: Any) -> Generator[None, Any, Any]:
    """Have the timer of a test print what the tasks wait for."""
    outcome = yield
    end_test = signal.getsignal(signal.SIGALRM)
    if settings.method == "signal" and callable(end_test):
        _set_timer(settings.timeout, end_test)
    return outcome


def _set_timer(seconds: float, end: Callable[[int, FrameType | None], Any]) -> None:
    """Call `end` after `seconds`, stretched, and again and again: see `REPEAT_SECONDS`."""
    bound = Deadline(seconds)

    def handle(number: int, frame: FrameType | None) -> None:
        if (left := bound.left()) > 0:
            signal.setitimer(signal.ITIMER_REAL, min(left, seconds), REPEAT_SECONDS)
            return
        if _Phase.is_running:  # else it fires again in the next phase
            print_waits()
            drop_call_to_java()
            end(number, frame)

    signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, seconds, REPEAT_SECONDS)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown() -> Generator[None, Any, Any]:
    """Bound the clean-up of a test that failed: pytest-timeout ends its timer with the failure."""
    with _running():
        if signal.getitimer(signal.ITIMER_REAL)[0]:
            return (yield)
        _set_timer(CLEAN_UP_SECONDS, _end_clean_up)
        try:
            return (yield)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)


def _end_clean_up(number: int, frame: FrameType | None) -> None:
    pytest.fail(f"the clean-up took more than {CLEAN_UP_SECONDS} s")


def drop_call_to_java() -> None:
    """Let the tests after this one ask Spark too, and end what runs there."""
    sessions = sys.modules.get("chain_verifier.spark.session")
    if sessions is None:
        return
    sessions.drop_call()
    context = sessions.SparkContext._active_spark_context
    if context is not None:
        context.cancelAllJobs()


def print_waits() -> None:
    """Print, for each task of the loop that runs, its name and the lines that it waits in."""
    for line in waits():
        print(line, file=sys.stderr)  # noqa: T201 - the report shows it


def waits() -> list[str]:
    """Return the lines of `print_waits`; none where no loop runs."""
    try:
        tasks = asyncio.all_tasks()
    except RuntimeError:  # no loop runs: the traceback says it all
        return []
    lines = []
    for task in tasks:
        lines.append(f"waiting: {task.get_name()}")
        step: Any = task.get_coro()
        while step is not None:
            if (frame := getattr(step, "cr_frame", None)) is not None:
                file = frame.f_code.co_filename
                text = linecache.getline(file, frame.f_lineno).strip()
                lines.append(f"  {file}:{frame.f_lineno}: {text}")
            step = getattr(step, "cr_await", None)
    return lines
