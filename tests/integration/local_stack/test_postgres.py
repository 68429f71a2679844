"""PostgreSQL as the stack runs it, broken in the ways that the fault tests rely on."""

from __future__ import annotations

import os
import secrets
import socket
import time
from typing import TYPE_CHECKING

import asyncpg
import pytest

from local_stack import (
    FolderUnusable,
    PostgresServer,
    PostgresServerConfig,
    ServerFailed,
    StatementFailed,
)
from local_stack.process import LOOPBACK, free_port

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.postgres


def make_server(folder: Path, password: str | None = None) -> PostgresServer:
    passwords = {"postgres": password or secrets.token_hex(8), "auditor": secrets.token_hex(8)}
    config = PostgresServerConfig(
        directory=folder, port=free_port(), passwords=passwords, shared_buffers_mb=32
    )
    return PostgresServer(config)


@pytest.fixture
def server(server_folder: Path) -> Iterator[PostgresServer]:
    """One of its own for each test that breaks it."""
    made = make_server(server_folder / "postgres")
    try:
        made.start()
        yield made
    finally:
        made.stop()


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("fsync", "on"),
        ("full_page_writes", "on"),
        ("synchronous_commit", "on"),
        ("data_checksums", "on"),
        ("wal_level", "replica"),
        ("listen_addresses", "127.0.0.1"),
        ("unix_socket_directories", ""),
        ("server_encoding", "UTF8"),
        ("password_encryption", "scram-sha-256"),
        ("max_connections", "100"),
    ],
)
def test_setting(postgres_server: PostgresServer, setting: str, expected: str) -> None:
    assert postgres_server.execute(f"SHOW {setting}") == expected


def test_server_does_not_run_as_root(postgres_server: PostgresServer) -> None:
    assert postgres_server.process is not None
    status = os.stat(f"/proc/{postgres_server.process.process_id}")  # noqa: PTH116 - no real file
    assert status.st_uid == postgres_server.account.user_id != 0


@pytest.mark.parametrize("role", ["postgres", "auditor"])
async def test_connect_with_a_wrong_password_is_refused(
    postgres_server: PostgresServer, role: str
) -> None:
    with pytest.raises(asyncpg.InvalidPasswordError):
        await asyncpg.connect(
            host=LOOPBACK,
            port=postgres_server.config.port,
            user=role,
            password="wrong",
            database="postgres",
        )


async def test_connect_as_an_unknown_user_is_refused(postgres_server: PostgresServer) -> None:
    with pytest.raises(asyncpg.InvalidPasswordError):
        await asyncpg.connect(
            host=LOOPBACK,
            port=postgres_server.config.port,
            user="nobody",
            password="wrong",
            database="postgres",
        )


def test_every_role_has_a_password_of_its_own(postgres_server: PostgresServer) -> None:
    lines = postgres_server.execute(
        "SELECT rolname || ' ' || coalesce(rolpassword, '-') FROM pg_authid WHERE rolcanlogin"
    ).splitlines()
    stored = dict(line.split(" ", 1) for line in lines)
    passwords = postgres_server.config.passwords
    assert len(set(passwords.values())) == len(passwords)
    # Other roles there are another test's, which has made them without a password.
    assert all(stored[role].startswith("SCRAM-SHA-256$") for role in passwords)


def test_execute_with_an_error_gives_the_servers_words(postgres_server: PostgresServer) -> None:
    with pytest.raises(StatementFailed, match='relation "missing" does not exist'):
        postgres_server.execute("SELECT * FROM missing")


def test_prepare_roles_twice_changes_nothing(postgres_server: PostgresServer) -> None:
    query = "SELECT rolname FROM pg_roles ORDER BY 1"
    before = postgres_server.execute(query)
    postgres_server.prepare_roles()
    assert postgres_server.execute(query) == before


def test_stop_and_start_keeps_data_and_port(server: PostgresServer) -> None:
    server.execute("CREATE TABLE kept AS SELECT 42 AS x")
    server.stop()
    assert not server.is_running()
    assert not server.is_answering()
    server.start()
    assert server.execute("SELECT x FROM kept") == "42"


def test_kill_with_a_busy_backend_then_start_recovers(server: PostgresServer) -> None:
    server.execute("CREATE TABLE kept AS SELECT 42 AS x")
    with socket.create_connection((LOOPBACK, server.config.port)):
        server.kill()
        assert not server.is_running()
        server.start()
    assert server.execute("SELECT x FROM kept") == "42"
    assert "was not properly shut down; automatic recovery in progress" in (
        server.log_path.read_text()
    )


async def test_kill_ends_the_connections(server: PostgresServer) -> None:
    connection = await asyncpg.connect(server.dsn())
    try:
        server.kill()
        with pytest.raises((asyncpg.ConnectionDoesNotExistError, ConnectionError, OSError)):
            await connection.execute("SELECT 1")
    finally:
        connection.terminate()


def test_freeze_and_thaw(server: PostgresServer) -> None:
    server.freeze()
    assert server.is_running()
    assert not server.is_answering(timeout_s=1)
    server.thaw()
    assert server.is_answering()


def test_kill_of_a_frozen_server_then_start(server: PostgresServer) -> None:
    server.freeze()
    server.kill()
    server.start()
    assert server.execute("SELECT 1") == "1"


def test_start_on_a_taken_port_says_so(server_folder: Path) -> None:
    server = make_server(server_folder / "postgres")
    with (
        socket.create_server((LOOPBACK, server.config.port)),
        pytest.raises(ServerFailed) as caught,
    ):
        server.start()
    assert "Address already in use" in caught.value.log_tail


def test_start_after_an_interrupted_initdb_begins_anew(server_folder: Path) -> None:
    server = make_server(server_folder / "postgres")
    half_done = server.directory / "data.new"
    half_done.mkdir(parents=True)
    server.directory.chmod(0o755)
    (half_done / "PG_VERSION").write_text("18\n")
    try:
        server.start()
        assert server.execute("SELECT 1") == "1"
    finally:
        server.stop()


def test_start_with_another_setting_takes_it(server: PostgresServer) -> None:
    server.stop()
    again = PostgresServer(
        PostgresServerConfig(
            directory=server.directory,
            port=server.config.port,
            passwords=server.config.passwords,
            shared_buffers_mb=32,
            settings={"max_connections": "17"},
        )
    )
    try:
        again.start()
        assert again.execute("SHOW max_connections") == "17"
    finally:
        again.stop()


def test_standby_follows_its_primary(server: PostgresServer, server_folder: Path) -> None:
    standby = make_server(server_folder / "standby", server.config.passwords["postgres"])
    standby.initialise_standby(server)
    try:
        standby.start()
        assert standby.execute("SELECT pg_is_in_recovery()") == "t"
        server.execute("CREATE TABLE followed AS SELECT 7 AS x")
        wait_for(standby, "SELECT to_regclass('followed') IS NOT NULL")
        assert standby.execute("SELECT x FROM followed") == "7"
        with pytest.raises(FolderUnusable, match="exists already"):
            standby.initialise_standby(server)
    finally:
        standby.stop()


def wait_for(server: PostgresServer, query: str, deadline_s: float = 20.0) -> None:
    end = time.monotonic() + deadline_s
    while server.execute(query) != "t":
        assert time.monotonic() < end, f"not within {deadline_s} s: {query}"
        time.sleep(0.05)
