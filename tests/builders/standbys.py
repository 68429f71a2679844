"""Streaming standbys of a PostgreSQL, and pairs of servers that fail over."""

import secrets
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from chain_kernel.sql import LOGIN_ROLES
from local_stack import PostgresServer, PostgresServerConfig
from local_stack.folders import make_private_folder, make_shared_folder
from local_stack.postgres import SUPERUSER
from local_stack.process import LOOPBACK, free_port

_S = TypeVar("_S", bound=PostgresServer)

SMALL: dict[str, Any] = {"shared_buffers_mb": 64, "max_wal_size_mb": 512}


class ServerPair(NamedTuple):
    """A primary and its streaming standby, both to be broken."""

    primary: PostgresServer
    standby: PostgresServer

    def dsn(self, role: str, database: str, target: str = "primary") -> str:
        """Return the URL that names both, the old primary first; `target`: which one is wanted."""
        password = self.primary.config.passwords[role]
        hosts = ",".join(f"{LOOPBACK}:{server.config.port}" for server in self)
        asked = f"?target_session_attrs={target}" if target else ""
        return f"postgresql://{role}:{password}@{hosts}/{database}{asked}"

    def wait_for_standby(self) -> None:
        """Have each commit wait for the standby from now on."""
        execute = self.primary.execute
        execute("SET synchronous_commit = local; ALTER SYSTEM SET synchronous_standby_names = '*'")
        execute("SELECT pg_reload_conf()")
        look = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'"
        while execute(look) != "1":
            pass

    def promote(self) -> None:
        """Make the standby a primary, whatever the other one does."""
        self.standby.execute("SELECT pg_promote()")


@contextmanager
def pair_in(folder: Path) -> Iterator[ServerPair]:
    """Run a primary and its standby with folders below `folder`."""
    passwords = {role: secrets.token_hex(16) for role in (SUPERUSER, *LOGIN_ROLES)}
    config = PostgresServerConfig(
        directory=folder / "primary", port=free_port(), passwords=passwords, **SMALL
    )
    with PostgresServer(config) as primary:
        primary.prepare_roles()
        with standby_of(primary, folder / "standby", **SMALL) as standby:
            yield ServerPair(primary, standby)


def standby_of(primary: _S, directory: Path, **config: Any) -> _S:
    """Return a standby of `primary`, which must be running; it is not started yet."""
    server = type(primary)(
        PostgresServerConfig(
            directory=directory, port=free_port(), passwords=primary.config.passwords, **config
        )
    )
    make_shared_folder(directory, server.account)
    make_private_folder(server.data_directory, server.account)
    program = server.installation.program("pg_basebackup")
    subprocess.run(
        [program, "-D", server.data_directory, "-c", "fast"],
        check=True,
        capture_output=True,
        cwd="/",
        env=primary.client_environment(),
        umask=0o077,
        timeout=600,
        **server.account.popen_arguments(),
    )
    _follow(server, primary)
    return server


def _follow(standby: PostgresServer, primary: PostgresServer) -> None:
    """Have `standby` read from `primary`. pg_basebackup's -R names options of its own version."""
    environment = primary.client_environment()
    names = {"host": "PGHOST", "port": "PGPORT", "user": "PGUSER", "password": "PGPASSWORD"}
    found = " ".join(f"{name}={environment[variable]}" for name, variable in names.items())
    with (standby.data_directory / "postgresql.auto.conf").open("a", encoding="utf-8") as file:
        file.write(f"primary_conninfo = '{found}'\n")
    signal = standby.data_directory / "standby.signal"
    signal.touch()
    standby.account.own(signal)
