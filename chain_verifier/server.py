"""Connections to the chain's database."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, ParamSpec, Self, TypeVar

from chain_kernel.clients.database_config import DatabaseConfig
from chain_kernel.clients.postgres_errors import DRIVER_ERRORS, statement_refusal
from chain_kernel.clients.session import Session, SessionConfig, connected
from chain_kernel.sql import AUDITOR
from chain_verifier.config import CONNECT_SECONDS, READ_TIMEOUT_S
from chain_verifier.runner import Runner

if TYPE_CHECKING:
    from collections.abc import (
        AsyncGenerator,
        AsyncIterator,
        Callable,
        Coroutine,
        Iterator,
        Mapping,
    )
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


class Reading:
    """One connection that answers statements, for callers with and without an event loop."""

    def __init__(
        self, database: str | DatabaseConfig, connect_seconds: float = CONNECT_SECONDS
    ) -> None:
        self._session = Session(verifier_session_config(database, AUDITOR, connect_seconds))
        self._runner = Runner()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; no statement runs any more."""
        self._runner.run(self._session.close())
        self._runner.close()

    def fetch(self, statement: str, *values: object) -> list[Any]:
        """Return the rows of a statement. Raises what `Session.fetch` raises."""
        return self._runner.run(self._session.fetch(statement, *values))


def read_by_pieces(
    database: DatabaseConfig, connect_seconds: float, statements: Mapping[int, str], rows: int
) -> Iterator[tuple[int, list[Any]]]:
    """Yield what each statement finds, beside its number, at most `rows` rows at a time.

    All over one connection, and never more in memory. Raises what `Session.fetch` raises.
    """
    config = verifier_session_config(database, AUDITOR, connect_seconds)
    runner, pieces = Runner(), _pieces(config, statements, rows)
    try:
        while (piece := runner.run(_next(pieces))) is not None:
            yield piece
    finally:
        runner.run(pieces.aclose())
        runner.close()


async def _next(pieces: AsyncIterator[_T]) -> _T | None:
    return await anext(pieces, None)


async def _pieces(
    config: SessionConfig, statements: Mapping[int, str], rows: int
) -> AsyncGenerator[tuple[int, list[Any]], None]:
    try:
        async with connected(config) as connection:
            for number, statement in statements.items():
                # A cursor lives in a transaction.
                async with connection.transaction(readonly=True):
                    cursor = await connection.cursor(statement)
                    while found := await cursor.fetch(rows):
                        yield number, found
    except DRIVER_ERRORS as error:
        raise statement_refusal(error, config.database, config.role) from error
