"""Coroutines, run for callers with and without a loop of their own. Imports no driver."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

_P = ParamSpec("_P")
_T = TypeVar("_T")
_R = TypeVar("_R")


class Runner:
    """Runs coroutines in a loop of its own, also for a caller in a running one, as in a notebook.

    There a thread does it. Elsewhere the caller's own does: so Ctrl-C ends what runs.
    """

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self._thread: ThreadPoolExecutor | None = None

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Return what `work` returns."""
        return self._call(self._runner.run, work)

    def close(self) -> None:
        """Close the loop."""
        self._call(self._runner.close)
        if self._thread is not None:
            self._thread.shutdown()

    def _call(self, function: Callable[_P, _R], *args: _P.args, **options: _P.kwargs) -> _R:
        if self._thread is None and not _is_in_loop():
            return function(*args, **options)
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "verifier")
        return self._thread.submit(function, *args, **options).result()


def _is_in_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
