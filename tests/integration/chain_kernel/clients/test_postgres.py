"""A connection with the right config comes about; what is wrong with another is named."""

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chain_kernel.clients import postgres
from chain_kernel.clients.database_config import DatabaseConfig
from chain_kernel.clients.postgres import close_connection, connect
from chain_kernel.errors import ConnectError, OrderchainError, RetryError
from local_stack import PostgresServer
from local_stack.postgres import SUPERUSER
from local_stack.process import free_port
from tests.builders.standbys import standby_of
from tests.certificates import Authority, pkcs8
from tests.deadlines import LONG_SECONDS, deadline
from tests.secured_postgres import (
    CERTIFIED,
    TRADER,
    SecuredPostgres,
    secured_postgres_in,
)
from tests.silent_server import silent_server
from tests.sockets import no_socket_left


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


async def test_password_of_a_passfile_is_used(secured: SecuredPostgres, tmp_path: Path) -> None:
    file = tmp_path / "passfile"
    file.write_text(f"# ours\nother:*:*:*:wrong\n*:{secured.port}:postgres:{TRADER}:for-trade\n")
    file.chmod(0o600)
    assert await ask(secured.right(password="", passfile=str(file)), IS_TLS) is True
    file.write_text("*:*:*:*:changed\n")
    config = secured.right(password="", passfile=str(file))
    assert "wrong user or password" in await refused(config)


@pytest.mark.parametrize("mode", ["verify-full", "require"])
async def test_certificate_that_is_away_while_it_is_rotated_is_an_outage(
    secured: SecuredPostgres, authority: Authority, tmp_path: Path, mode: str
) -> None:
    """A SettingError would end the leader, with the order in flight unknown."""
    root = tmp_path / "authority.pem"
    root.write_bytes(authority.path.read_bytes())
    config = secured.right(sslmode=mode, sslrootcert=str(root))
    assert await ask(config, IS_TLS) is True
    root.rename(tmp_path / "away")
    assert "sslrootcert" in await refused(config)
    (tmp_path / "away").rename(root)
    assert await ask(config, IS_TLS) is True


@pytest.mark.parametrize("option", ["-c search_path=app", "--search-path=app"])
async def test_option_of_a_config_takes_precedence(secured: SecuredPostgres, option: str) -> None:
    assert await ask(secured.right(options=option), "SHOW search_path") == "app"


async def test_environment_adds_nothing_to_a_config(
    secured: SecuredPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """asyncpg would look there for what it is not given."""
    monkeypatch.setenv("PGPASSWORD", "for-trade")
    assert "wrong user or password" in await refused(secured.right(password=""))


async def test_what_is_wrong_is_named(secured: SecuredPostgres, tmp_path: Path) -> None:
    other = Authority(tmp_path, "other")
    strange = other.client(CERTIFIED)
    right, port = secured.right, free_port()
    for config, words in (
        (right(sslrootcert=str(other.path)), f"signed by sslrootcert {other.path}"),
        (right(sslmode="verify-ca", sslrootcert=str(other.path)), "signed by sslrootcert"),
        (right(sslmode="require", sslrootcert=str(other.path)), "signed by sslrootcert"),
        (right(sslrootcert="system"), "signed by sslrootcert system"),
        (right(host="127.0.0.1"), "for the host that was asked for"),
        (right(sslmode="disable", sslrootcert=""), "does it ask for TLS? sslmode is disable"),
        (right(password="Tr0ub4dor"), "wrong user or password"),
        (right(dbname="none"), "a database that exists"),
        (right(port=port), f"listens at localhost:{port}"),
        (right(host="no-such-host.invalid"), "a host name that can be resolved"),
        (right(CERTIFIED), "a login that the server accepts"),
        (
            secured.certified(strange),
            f"a client certificate that the server accepts, not {strange.certificate}",
        ),
        (
            right(host="localhost,127.0.0.1", port=f"{port},{secured.port}"),
            f"localhost:{port}: a server that listens",
        ),
    ):
        assert words in await refused(config)
    assert await ask(right(host="127.0.0.1", sslmode="verify-ca"), IS_TLS) is True


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


async def test_silent_server_is_named() -> None:
    async with silent_server() as port:
        config = DatabaseConfig(host="127.0.0.1", port=port)
        assert "it is silent" in await refused(config, seconds=0.5)


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


async def test_primary_of_several_is_found(secured: SecuredPostgres, session_folder: Path) -> None:
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


async def test_host_that_was_silent_delays_no_further_connect(
    secured: SecuredPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with silent_server() as port:
        both = {"host": "localhost,localhost", "port": f"{port},{secured.port}"}
        config = secured.right(**both, target_session_attrs="primary")
        monkeypatch.setattr(postgres, "_OTHERS_SECONDS", 0.3)
        assert await ask(config, "SELECT 1") == 1
        monkeypatch.setattr(postgres, "_OTHERS_SECONDS", 2 * LONG_SECONDS)
        assert await ask(config, "SELECT 1") == 1
        wrong = secured.right(**both, target_session_attrs="primary", password="another")
        async with deadline():
            assert "wrong user or password" in await refused(wrong, seconds=2 * LONG_SECONDS)


async def test_each_address_of_a_name_is_tried(
    secured: SecuredPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one is silent; the certificate is that of the name."""

    async def both(host: str, port: int, **_: object) -> list[Any]:
        assert host == "localhost"
        return [(*[None] * 4, (address, port)) for address in ("127.0.0.2", "127.0.0.1")]

    async with silent_server(host="127.0.0.2", port=secured.port):
        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", both)
        assert await ask(secured.right(), IS_TLS, 4.0) is True


async def test_weak_tls_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    config = DatabaseConfig(host="no-such-host.invalid", user="trader")
    with caplog.at_level(logging.WARNING, logger="chain_kernel.clients.database_config"):
        await refused(config)
        await refused(config)
    (record,) = caplog.records
    assert "sslmode=verify-full" in record.getMessage()
