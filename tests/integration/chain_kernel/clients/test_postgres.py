"""A connection with the right config comes about; what is wrong with another is named."""

from __future__ import annotations

import asyncio
import logging
import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

import asyncpg
import pytest

from chain_kernel.clients.database_config import DatabaseConfig
from chain_kernel.clients.postgres import close_connection, connect
from chain_kernel.errors import ConnectError, OrderchainError, RetryError
from local_stack.postgres import SUPERUSER
from local_stack.process import free_port
from tests.builders.standbys import standby_of
from tests.certificates import Authority, pkcs8
from tests.deadlines import LONG_SECONDS
from tests.pages import ROOT
from tests.secured_postgres import (
    CERTIFIED,
    TRADER,
    SecuredPostgres,
    secured_postgres_in,
)
from tests.silent_server import silent_server
from tests.sockets import no_socket_left

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from local_stack import PostgresServer


ARRAYS: dict[str, list[Any]] = {
    "bool": [True, False],
    "bytea": [b"a", b""],
    "int8": [2**40, -1],
    "int2": [1, -2],
    "int4": [2**20, -3],
    "text": ["a", "b,c"],
    "float8": [0.5, 1e300],
    "timestamptz": [datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC)],
    "interval": [timedelta(seconds=1, microseconds=5)],
    "uuid": [UUID(int=5)],
}
PARTS = [
    ROOT / part
    for part in (
        "sequencer", "gapfill", "matcher_receiver", "outbox", "chain_verifier", "chainctl",
    )
]  # fmt: skip


@pytest.fixture(scope="session")  # a module of which other tests come between would make it twice
def folder(session_folder: Path) -> Path:
    path = session_folder / "certificates"
    path.mkdir(mode=0o755)
    return path


@pytest.fixture(scope="session")
def authority(folder: Path) -> Authority:
    return Authority(folder)


@pytest.fixture(scope="session")
def secured(session_folder: Path, authority: Authority) -> Iterator[SecuredPostgres]:
    with secured_postgres_in(session_folder / "secured", authority, authority.server()) as server:
        yield server


async def ask(config: DatabaseConfig, query: str, seconds: float = LONG_SECONDS) -> Any:
    """Connect, and return the only value of a query."""
    connection = await connect(config, application_name="test", within_seconds=seconds)
    try:
        return await connection.fetchval(query)
    finally:
        await close_connection(connection)


@pytest.mark.postgres
async def test_arrays_of_our_statements_are_known_without_asking_the_server(
    postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """asyncpg asks for types that it does not know, once per connection."""

    async def asked(*_: Any, **__: Any) -> Any:
        pytest.fail("the server was asked for a type")

    monkeypatch.setattr(asyncpg.Connection, "_introspect_types", asked)
    config = DatabaseConfig.of(postgres_server.dsn(SUPERUSER))
    connection = await connect(config, application_name="test", within_seconds=LONG_SECONDS)
    try:
        for name, values in ARRAYS.items():
            found = await connection.fetchrow(
                f"SELECT $1::{name}[] AS given, array_length($1::{name}[], 1) AS length", values
            )
            assert (found["given"], found["length"]) == (values, len(values)), name
    finally:
        await close_connection(connection)


def test_arrays_that_are_known_are_those_of_our_statements() -> None:
    texts = [path.read_text(encoding="utf-8") for part in PARTS for path in part.rglob("*.sql")]
    sent = set(re.findall(r"\$[0-9]+::(\w+)\[\]", "\n".join(texts)))
    names = {"bigint": "int8", "integer": "int4", "smallint": "int2", "boolean": "bool"}
    assert {names.get(name, name) for name in sent} <= ARRAYS.keys()


async def refused(
    config: DatabaseConfig,
    kind: type[OrderchainError] = ConnectError,
    seconds: float = LONG_SECONDS,
) -> str:
    with pytest.raises(kind) as found:
        async with no_socket_left():
            await ask(config, "SELECT 1", seconds)
    text = str(found.value)
    assert "\n" not in text
    assert not config.password or config.password not in text
    return text


IS_TLS = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()"


@pytest.mark.parametrize("mode", ["require", "verify-ca", "verify-full"])
async def test_right_config_connects_with_tls(secured: SecuredPostgres, mode: str) -> None:
    assert await ask(secured.right(sslmode=mode), IS_TLS) is True


async def test_settings_of_the_session_and_its_name_are_given(secured: SecuredPostgres) -> None:
    query = "SELECT current_setting('application_name') || current_setting('work_mem')"
    config = secured.right(options="-c work_mem=7MB")
    assert await ask(config, query) == "test7MB"
    assert await ask(secured.right(application_name="ours"), query) == "ours4MB"


async def test_text_with_environment_of_libpq_connects_with_tls(secured: SecuredPostgres) -> None:
    environ = {
        "HOME": "/nonexistent",
        "PGSSLMODE": "verify-full",
        "PGSSLROOTCERT": str(secured.authority.path),
        "PGPASSWORD": "for-trade",
    }
    for text in (
        f"postgresql://{TRADER}@localhost:{secured.port}/postgres",
        f"host=localhost port={secured.port} user={TRADER} dbname=postgres",
    ):
        assert await ask(DatabaseConfig.of(text, environ), IS_TLS) is True


async def test_password_of_a_passfile_is_used(secured: SecuredPostgres, tmp_path: Path) -> None:
    file = tmp_path / "passfile"
    file.write_text(f"# ours\nother:*:*:*:wrong\n*:{secured.port}:postgres:{TRADER}:for-trade\n")
    file.chmod(0o600)
    assert await ask(secured.right(password="", passfile=str(file)), IS_TLS) is True
    file.write_text("*:*:*:*:changed\n")
    config = secured.right(password="", passfile=str(file))
    assert "wrong user or password" in await refused(config)


async def test_environment_adds_nothing_to_a_config(
    secured: SecuredPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """asyncpg would look there for what it is not given."""
    monkeypatch.setenv("PGPASSWORD", "for-trade")
    assert "wrong user or password" in await refused(secured.right(password=""))


async def test_wrong_authority_is_named(secured: SecuredPostgres, tmp_path: Path) -> None:
    other = Authority(tmp_path, "other")
    for mode in ("verify-full", "verify-ca", "require"):
        said = await refused(secured.right(sslmode=mode, sslrootcert=str(other.path)))
        assert f"signed by sslrootcert {other.path}" in said


async def test_authorities_of_the_system_do_not_know_ours(secured: SecuredPostgres) -> None:
    assert "signed by sslrootcert system" in await refused(secured.right(sslrootcert="system"))


async def test_wrong_host_is_named_unless_it_is_not_compared(secured: SecuredPostgres) -> None:
    said = await refused(secured.right(host="127.0.0.1"))
    assert "for the host that was asked for" in said
    assert "127.0.0.1" in said
    assert await ask(secured.right(host="127.0.0.1", sslmode="verify-ca"), IS_TLS) is True


async def test_expired_certificate_is_named(session_folder: Path, authority: Authority) -> None:
    files = authority.server(name="expired", has_expired=True)
    with secured_postgres_in(session_folder / "expired", authority, files) as server:
        said = await refused(server.right())
    assert "valid today (certificate has expired)" in said


async def test_server_without_tls_is_named(
    postgres_server: PostgresServer, authority: Authority
) -> None:
    for mode, root in (("require", ""), ("verify-full", str(authority.path))):
        config = DatabaseConfig(
            host="localhost",
            port=postgres_server.config.port,
            user=SUPERUSER,
            sslmode=mode,
            sslrootcert=root,
        )
        assert "a server that speaks TLS: it has none" in await refused(config)


async def test_server_that_asks_for_tls_is_named(secured: SecuredPostgres) -> None:
    said = await refused(secured.right(sslmode="disable", sslrootcert=""))
    assert "does it ask for TLS? sslmode is disable" in said


async def test_wrong_password_is_named(secured: SecuredPostgres) -> None:
    said = await refused(secured.right(password="Tr0ub4dor"))
    assert "wrong user or password" in said
    assert "TLS" not in said


async def test_missing_database_is_named(secured: SecuredPostgres) -> None:
    assert "a database that exists" in await refused(secured.right(dbname="none"))


async def test_login_that_may_not_connect_to_the_database_is_named(
    secured: SecuredPostgres,
) -> None:
    secured.server.execute("CREATE DATABASE closed")
    secured.server.execute("REVOKE CONNECT ON DATABASE closed FROM PUBLIC")
    said = await refused(secured.right(dbname="closed"))
    assert f"a login that may connect to this database (login {TRADER}: permission denied" in said


async def test_closed_port_and_unknown_host_are_named(secured: SecuredPostgres) -> None:
    port = free_port()
    assert f"listens at localhost:{port}" in await refused(secured.right(port=port))
    said = await refused(secured.right(host="no-such-host.invalid"))
    assert "a host name that can be resolved" in said


async def test_silent_server_is_named() -> None:
    async with silent_server() as port:
        config = DatabaseConfig(host="127.0.0.1", port=port)
        assert "it is silent" in await refused(config, seconds=0.5)


# -- client certificates -------------------------------------------------------------------------


async def test_client_certificate_logs_in(secured: SecuredPostgres, authority: Authority) -> None:
    files = authority.client(CERTIFIED)
    assert await ask(secured.certified(files), "SELECT current_user") == CERTIFIED


async def test_client_certificate_with_encrypted_key_logs_in(
    secured: SecuredPostgres, authority: Authority, tmp_path: Path
) -> None:
    files = authority.client(CERTIFIED)
    key = tmp_path / "encrypted.key"
    key.write_text(pkcs8(files.key_text.encode(), "sesame"))
    config = secured.certified(files, sslkey=str(key), sslpassword="sesame")
    assert await ask(config, "SELECT current_user") == CERTIFIED


async def test_client_certificate_on_this_machine_without_a_mode_logs_in(
    secured: SecuredPostgres, authority: Authority
) -> None:
    config = secured.certified(authority.client(CERTIFIED), sslmode="")
    assert config.tls_mode == "prefer"
    assert await ask(config, "SELECT current_user") == CERTIFIED


async def test_missing_client_certificate_is_named(secured: SecuredPostgres) -> None:
    said = await refused(secured.right(CERTIFIED))
    assert "certificate" in said
    assert "a login that the server accepts" in said


async def test_refused_client_certificate_is_named(
    secured: SecuredPostgres, tmp_path: Path
) -> None:
    files = Authority(tmp_path, "other").client(CERTIFIED)
    said = await refused(secured.certified(files))
    assert f"a client certificate that the server accepts, not {files.certificate}" in said


async def test_loop_of_uvloop_names_causes_too(secured: SecuredPostgres, tmp_path: Path) -> None:
    """The daemons run on it, and it raises other errors at places."""
    import uvloop

    def said_of(config: DatabaseConfig) -> str:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(refused(config))

    other = Authority(tmp_path, "other")
    for config, words in (
        (secured.right(host="127.0.0.1"), "for the host that was asked for"),
        (secured.right(sslrootcert=str(other.path)), "signed by sslrootcert"),
        (
            secured.certified(other.client(CERTIFIED)),
            "a client certificate that the server accepts",
        ),
        (secured.right(password="Tr0ub4dor"), "wrong user or password"),
        (secured.right(port=free_port()), "a server that listens at"),
    ):
        assert words in await asyncio.to_thread(said_of, config)


# -- several hosts -------------------------------------------------------------------------------


async def test_primary_among_several_hosts_is_found(
    secured: SecuredPostgres, session_folder: Path
) -> None:
    config = secured.server.config
    folder = session_folder / "secured-standby"
    folder.mkdir(mode=0o755)
    standby = standby_of(
        secured.server, folder / "postgres", max_wal_size_mb=128, settings=config.settings
    )
    with standby:
        ports = f"{standby.config.port},{secured.port}"
        in_recovery = "SELECT pg_is_in_recovery()"
        for target, expected in (
            ("primary", False),
            ("read-write", False),
            ("standby", True),
            ("prefer-standby", True),
            ("any", True),
        ):
            both = secured.right(
                host="localhost,localhost", port=ports, target_session_attrs=target
            )
            assert await ask(both, in_recovery) is expected
        alone = secured.right(port=standby.config.port, target_session_attrs="primary")
        assert "not primary now" in await refused(alone, RetryError)
    assert await ask(both, in_recovery) is False
    preferred = secured.right(target_session_attrs="prefer-standby")
    assert await ask(preferred, in_recovery) is False


async def test_silent_host_leaves_time_for_the_next(secured: SecuredPostgres) -> None:
    async with silent_server() as port:
        both = secured.right(host="localhost,localhost", port=f"{port},{secured.port}")
        assert await ask(both, "SELECT 1", 8.0) == 1
        limited = secured.right(
            host="localhost,localhost", port=f"{port},{secured.port}", connect_timeout=1
        )
        assert await ask(limited, "SELECT 1") == 1


async def test_all_hosts_are_named_with_what_each_lacks(secured: SecuredPostgres) -> None:
    closed = free_port()
    both = secured.right(host="localhost,127.0.0.1", port=f"{closed},{secured.port}")
    said = await refused(both)
    assert f"localhost:{closed}: a server that listens" in said
    assert f"127.0.0.1:{secured.port}: a server's certificate for the host" in said


# -- the warning ---------------------------------------------------------------------------------


async def test_host_elsewhere_below_verify_full_is_warned_of_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    config = DatabaseConfig(host="no-such-host.invalid", user="trader")
    with caplog.at_level(logging.WARNING, logger="chain_kernel.clients.database_config"):
        await refused(config)
        await refused(config)
    (record,) = caplog.records
    assert "sslmode=verify-full" in record.getMessage()
