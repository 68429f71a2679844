"""Connections to the chain's database for everything except Spark's scans."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from chain_kernel.clients.database_config import DatabaseConfig
from chain_kernel.clients.session import SessionConfig, connected
from chain_verifier.config import CONNECT_SECONDS, READ_TIMEOUT_S
from chain_verifier.runner import Runner

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from contextlib import AbstractAsyncContextManager

    from chain_kernel.clients.postgres import Connection


_P = ParamSpec("_P")
_T = TypeVar("_T")


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
