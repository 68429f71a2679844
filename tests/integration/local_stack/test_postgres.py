"""PostgreSQL as the stack runs it, broken in the ways that the fault tests rely on."""

import asyncio
import os
import secrets
import socket
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest

from local_stack import PostgresServer, PostgresServerConfig
from local_stack.errors import ServerFailed, StatementFailed
from local_stack.postgres import PREFIX_VARIABLE
from local_stack.process import LOOPBACK, free_port
from tests.silent_server import silent_server

pytestmark = pytest.mark.postgres


def make_server(folder: Path, port: int | None = None) -> PostgresServer:
    passwords = {"postgres": secrets.token_hex(8), "auditor": secrets.token_hex(8)}
    config = PostgresServerConfig(
        directory=folder, port=port or free_port(), passwords=passwords, shared_buffers_mb=32
    )
    return PostgresServer(config)


@pytest.fixture
def server(server_folder: Path) -> Iterator[PostgresServer]:
    """One of its own for each test that breaks it."""
    with make_server(server_folder / "postgres") as made:
        yield made


def test_settings_are_safe_and_on_loopback(postgres_server: PostgresServer) -> None:
    expected = {
        "fsync": "on",
        "full_page_writes": "on",
        "synchronous_commit": "on",
        "data_checksums": "on",
        "wal_level": "replica",
        "listen_addresses": "127.0.0.1",
        "unix_socket_directories": "",
        "server_encoding": "UTF8",
        "password_encryption": "scram-sha-256",
        "max_connections": "100",
    }
    assert {name: postgres_server.execute(f"SHOW {name}") for name in expected} == expected


def test_server_does_not_run_as_root(postgres_server: PostgresServer) -> None:
    assert postgres_server.process is not None
    status = os.stat(f"/proc/{postgres_server.process.process_id}")  # noqa: PTH116 - no real file
    assert status.st_uid == postgres_server.account.user_id != 0


@pytest.mark.parametrize("role", ["postgres", "auditor", "nobody"])
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


def test_every_role_has_a_password_of_its_own(postgres_server: PostgresServer) -> None:
    lines = postgres_server.execute(
        "SELECT rolname || ' ' || coalesce(rolpassword, '-') FROM pg_authid WHERE rolcanlogin"
    ).splitlines()
    stored = dict(line.split(" ", 1) for line in lines)
    passwords = postgres_server.config.passwords
    assert len(set(passwords.values())) == len(passwords)
    assert not any(password in repr(postgres_server.config) for password in passwords.values())
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


def test_start_on_a_taken_port_says_so(server_folder: Path) -> None:
    server = make_server(server_folder / "postgres")
    with (
        socket.create_server((LOOPBACK, server.config.port)),
        pytest.raises(ServerFailed) as caught,
    ):
        server.start()
    assert "Address already in use" in caught.value.log_tail


def test_start_after_an_interrupted_initdb_begins_again(server_folder: Path) -> None:
    server = make_server(server_folder / "postgres")
    half_done = server.directory / "data.new"
    half_done.mkdir(parents=True)
    server.directory.chmod(0o755)
    (half_done / "PG_VERSION").write_text("18\n")
    with server:
        assert server.execute("SELECT 1") == "1"


@pytest.mark.parametrize("major", [15, 16, 17, 18])
def test_server_runs_on_the_version_that_the_environment_names(
    server_folder: Path, monkeypatch: pytest.MonkeyPatch, major: int
) -> None:
    """The system's own, where it has one of this version."""
    prefix = Path(f"/usr/lib/postgresql/{major}")
    if not prefix.is_dir():
        pytest.skip(f"no PostgreSQL {major} of the system's (make versions runs it)")
    monkeypatch.setenv(PREFIX_VARIABLE, str(prefix))
    with make_server(server_folder / "postgres") as server:
        assert server.execute("SHOW server_version_num").startswith(str(major))
        assert server.execute("SHOW data_checksums") == "on"
        # By code point, on every system.
        assert server.execute("SELECT min(x) FROM (VALUES ('b'), ('a'), ('B')) AS t (x)") == "B"
        server.prepare_roles()
        server.create_database("orders")
        assert server.execute("SELECT 'ä'", database="orders") == "ä"


async def test_server_that_says_nothing_is_not_answering(server_folder: Path) -> None:
    async with silent_server() as port:
        server = make_server(server_folder / "postgres", port)
        assert not await asyncio.to_thread(server.is_answering, 1)
