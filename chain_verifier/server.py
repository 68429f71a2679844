"""Connections to the chain's database for everything except Spark's scans."""

from __future__ import annotations

import asyncio
import functools
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from chain_kernel.clients.database_config import DatabaseConfig
from chain_kernel.clients.session import SessionConfig, connected
from chain_verifier.config import CONNECT_SECONDS, READ_TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from contextlib import AbstractAsyncContextManager

    from chain_kernel.clients.postgres import Connection


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


def run_alone(work: Callable[_P, Coroutine[Any, Any, _T]]) -> Callable[_P, _T]:
    """Return a function that runs `work` to its end in a loop of its own, for callers without."""

    @functools.wraps(work)
    def run(*args: _P.args, **options: _P.kwargs) -> _T:
        runner = Runner()
        try:
            return runner.run(work(*args, **options))
        finally:
            runner.close()

    return run


def verifier_session_config(
    database: str | DatabaseConfig, role: str, connect_seconds: float = CONNECT_SECONDS
) -> SessionConfig:
    """Return how a session is held; members of `role` may do what the session is for."""
    return SessionConfig(
        database=DatabaseConfig.of(database),
        application_name="chain_verifier",
        role=role,
        connect_seconds=connect_seconds,
        statement_seconds=READ_TIMEOUT_S,
    )


def connection_to(
    database: str | DatabaseConfig, role: str, connect_seconds: float = CONNECT_SECONDS
) -> AbstractAsyncContextManager[Connection]:
    """Hold one connection for a while. Raises as `chain_kernel.clients.session.connected`."""
    return connected(verifier_session_config(database, role, connect_seconds))
