"""A real PostgreSQL that speaks TLS, with logins that ask for it, or for a client certificate.

The programs of the stack's wheel are built without OpenSSL, so the system's own are used.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

import pytest

from chain_kernel.clients.database_config import DatabaseConfig
from chain_kernel.sql import AUDITOR, GAP_READER, RECEIVER_WRITER, SEQUENCER_WRITER
from local_stack import PostgresServer, PostgresServerConfig
from local_stack.folders import write_file
from local_stack.postgres import SUPERUSER, Installation, named_installation
from local_stack.process import free_port
from tests.certificates import HOST, Authority, Files

SCHEMA: Final = Path(__file__).parents[1] / "schema.sql"

TRADER: Final = "trader"
"""Logs in by password, over TLS only."""
CERTIFIED: Final = "certified"
"""Logs in by a client certificate of its name."""

_PASSWORDS: Final = {SUPERUSER: "for-set-up", TRADER: "for-trade", CERTIFIED: "unused"}
_ACCESS: Final = f"""\
hostssl all {CERTIFIED} 127.0.0.1/32 cert
hostssl all {TRADER} 127.0.0.1/32 scram-sha-256
host all {SUPERUSER} 127.0.0.1/32 scram-sha-256
host replication {SUPERUSER} 127.0.0.1/32 scram-sha-256
"""


class SystemPostgres(PostgresServer):
    """The system's own PostgreSQL, 15 or newer. Skips the test where there is none."""

    @property
    def installation(self) -> Installation:
        folders = (path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/initdb"))
        found = sorted(folders, key=lambda folder: int(folder.parent.name))
        if not found and (program := shutil.which("initdb")):
            found = [Path(program).resolve().parent]
        if not found:
            pytest.skip("no PostgreSQL of the system's (Debian: apt-get install postgresql)")
        return named_installation(found[-1].parent, self.account)


@dataclass(frozen=True)
class SecuredPostgres:
    """The server, and what clients need to know of it."""

    server: SystemPostgres
    authority: Authority

    @property
    def port(self) -> int:
        return self.server.config.port

    def make_database(self, name: str) -> None:
        """Make a database with the engine's schema, where both logins may do what services do."""
        self.server.create_database(name)
        self.server.execute(f"BEGIN; {SCHEMA.read_text()} COMMIT", database=name)
        roles = ", ".join((SEQUENCER_WRITER, GAP_READER, RECEIVER_WRITER, AUDITOR))
        self.server.execute(f"GRANT {roles} TO {TRADER}, {CERTIFIED}", database=name)

    def url(self, database: str, user: str = TRADER, **options: str) -> str:
        """Return the address of a database as text."""
        return f"postgresql://{user}@{HOST}:{self.port}/{database}?{urlencode(options)}"

    @property
    def environment(self) -> dict[str, str]:
        """What libpq's environment says for the right config of the login by password."""
        return {
            "PGSSLMODE": "verify-full",
            "PGSSLROOTCERT": str(self.authority.path),
            "PGPASSWORD": _PASSWORDS[TRADER],
        }

    def right(self, user: str = TRADER, **changed: Any) -> DatabaseConfig:
        """Return the right config with verify-full, but for what is changed."""
        given: dict[str, Any] = {
            "host": HOST,
            "port": self.port,
            "dbname": "postgres",
            "user": user,
            "password": "" if user == CERTIFIED else _PASSWORDS[user],
            "sslmode": "verify-full",
            "sslrootcert": str(self.authority.path),
        }
        return DatabaseConfig(**{**given, **changed})

    def certified(self, files: Files, **changed: Any) -> DatabaseConfig:
        """Return the config of a client with a certificate."""
        given = {"sslcert": str(files.certificate), "sslkey": str(files.key)}
        return self.right(CERTIFIED, **{**given, **changed})


@contextmanager
def secured_postgres_in(
    folder: Path, authority: Authority, files: Files
) -> Iterator[SecuredPostgres]:
    """Start one with the certificate in `files`; stop it at the end."""
    folder.mkdir(mode=0o755)
    access = folder / "access.conf"
    config = PostgresServerConfig(
        directory=folder / "postgres",
        port=free_port(),
        passwords=_PASSWORDS,
        max_wal_size_mb=128,
        settings={
            "hba_file": str(access),
            "ssl": "on",
            "ssl_cert_file": str(folder / "server.crt"),
            "ssl_key_file": str(folder / "server.key"),
            "ssl_ca_file": str(folder / "authority.pem"),
        },
    )
    server = SystemPostgres(config)
    texts = {
        access: _ACCESS,
        folder / "server.crt": files.certificate_text,
        folder / "server.key": files.key_text,
        folder / "authority.pem": authority.text,
    }
    for path, text in texts.items():
        write_file(path, text, 0o600, server.account)
    with server:
        server.prepare_roles()
        yield SecuredPostgres(server, authority)
