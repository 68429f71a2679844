"""Streaming standbys of a PostgreSQL."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING, Any, TypeVar

from local_stack import PostgresServer, PostgresServerConfig
from local_stack.folders import make_private_folder, make_shared_folder
from local_stack.process import free_port

if TYPE_CHECKING:
    from pathlib import Path

_S = TypeVar("_S", bound=PostgresServer)


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
