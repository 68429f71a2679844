"""The fixtures of tests/conftest.py, which all other tests rest on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import asyncpg
import pytest

from chain_kernel.sql import LOGIN_ROLES

if TYPE_CHECKING:
    from collections.abc import Callable

    from local_stack import PostgresServer


async def test_database_is_fresh_and_writable(database: str) -> None:
    connection = await asyncpg.connect(database)
    try:
        await connection.execute("CREATE TABLE only_here (x int)")
        tables = await connection.fetch("SELECT FROM pg_tables WHERE tablename = 'only_here'")
    finally:
        await connection.close()
    assert len(tables) == 1


@pytest.mark.parametrize("turn", [1, 2])
async def test_database_of_the_last_test_is_gone(
    postgres_server: PostgresServer, database: str, turn: int
) -> None:
    query = "SELECT datname FROM pg_database WHERE datname LIKE 'test%'"
    assert database.endswith("/" + postgres_server.execute(query)), turn


@pytest.mark.parametrize("role", LOGIN_ROLES)
async def test_role_dsn_with_each_login_role_connects(
    role_dsn: Callable[[str], str], role: str
) -> None:
    connection = await asyncpg.connect(role_dsn(role))
    try:
        assert await connection.fetchval("SELECT current_user") == role
    finally:
        await connection.close()


def test_stack_environment_names_every_setting(stack_environment: dict[str, str]) -> None:
    assert set(stack_environment) == {
        "CHAINCTL_DATABASE",
        "CHAINCTL_GAP_DATABASE",
        "CHAINCTL_AUDIT_DATABASE",
        "CHAINCTL_KAFKA",
    }


def test_server_fixtures_mark_the_test(
    request: pytest.FixtureRequest, stack_environment: dict[str, str]
) -> None:
    assert {"postgres", "kafka"} <= {mark.name for mark in request.node.iter_markers()}
    assert stack_environment
