"""`chainctl` over a PostgreSQL that asks for TLS: by URL, by keywords, by libpq's environment."""

from __future__ import annotations

import json
import secrets
from typing import TYPE_CHECKING

import pytest

from local_stack.postgres import SUPERUSER
from tests.certificates import HOST, Authority
from tests.integration.chainctl.sizes import FILLED_ROWS
from tests.secured_postgres import CERTIFIED, TRADER, SecuredPostgres

if TYPE_CHECKING:
    from pathlib import Path

    from local_stack import KafkaServer
    from tests.integration.chainctl.conftest import Call, Refused

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]

WAYS = ["keywords", "certificate"]
"""URL and environment are those of README, which `test_secured_readme.py` follows."""


@pytest.fixture(scope="module")
def name(secured_postgres: SecuredPostgres) -> str:
    name = f"test_{secrets.token_hex(8)}"
    secured_postgres.make_database(name)
    return name


def settings_of(secured_postgres: SecuredPostgres, name: str, way: str) -> dict[str, str]:
    """Return the variables that name the database in one of the `WAYS`."""
    tls = {"sslmode": "verify-full", "sslrootcert": str(secured_postgres.authority.path)}
    if way == "certificate":
        files = secured_postgres.authority.client(CERTIFIED)
        own = {"sslcert": str(files.certificate), "sslkey": str(files.key)}
        return {"CHAINCTL_DATABASE": secured_postgres.url(name, CERTIFIED, **tls, **own)}
    keywords = {
        "host": "localhost", "port": secured_postgres.port, "dbname": name, "user": TRADER,
        "password": "for-trade", **tls,
    }  # fmt: skip
    text = " ".join(f"{key}='{value}'" for key, value in keywords.items())
    return {"CHAINCTL_DATABASE": text}


@pytest.mark.parametrize("way", WAYS)
def test_chain_lives_over_tls(
    call: Call,
    secured_postgres: SecuredPostgres,
    name: str,
    kafka_server: KafkaServer,
    free_chain: int,
    tmp_path: Path,
    way: str,
) -> None:
    settings = settings_of(secured_postgres, name, way) | {"CHAINCTL_KAFKA": kafka_server.bootstrap}
    orders, journal = tmp_path / "o.csv", tmp_path / "journal"
    orders.write_text("n\n" + "".join(f"{number}\n" for number in range(1, FILLED_ROWS + 1)))
    owner = secured_postgres.server.dsn(SUPERUSER, name).replace("127.0.0.1", HOST)
    created = call("chain", "create", free_chain, "--database", owner, settings=settings)
    assert created.code == 0, created
    steps: list[list[object]] = [
        ["sequence", "--chain", free_chain, "--input", orders],
        ["status", "--chain", free_chain],
        ["receive", "--chain", free_chain, "--output", journal],
        ["verify", "--chain", free_chain, "--local", "--source", "database", "--source", "topic",
         "--source", f"journal:{journal}"],
    ]  # fmt: skip
    for arguments in steps:
        done = call(*arguments, settings=settings)
        assert done.code == 0, (arguments, done)
        assert "for-trade" not in done.out + done.err
    filled = call(
        "fill", "--chain", free_chain, "--after", 0, "--until", FILLED_ROWS, settings=settings
    )
    assert [json.loads(line)["id"] for line in filled.out.splitlines()] == [
        *range(1, FILLED_ROWS + 1)
    ]


def test_what_is_wrong_is_said_in_one_line(
    refused: Refused, secured_postgres: SecuredPostgres, name: str, tmp_path: Path
) -> None:
    other = Authority(tmp_path, "other").path
    right = {"CHAINCTL_DATABASE": secured_postgres.url(name), **secured_postgres.environment}
    for changed, words in (
        ({"PGSSLMODE": "disable"}, "does it ask for TLS? sslmode is disable"),
        ({"PGSSLROOTCERT": str(other)}, f"signed by sslrootcert {other}"),
        ({"PGSSLROOTCERT": "/nowhere.pem"}, "sslrootcert"),
        ({"PGSSLMODE": "strict"}, "sslmode of database was 'strict', expected one of disable,"),
        ({"PGPASSWORD": "Tr0ub4dor"}, "wrong user or password"),
    ):
        for command in (
            ["chain", "list"],
            ["verify", "--chain", 1, "--local", "--source", "database"],
        ):
            line = refused(*command, settings={**right, **changed}, hidden="Tr0ub4dor")
            assert words in line


def test_config_show_hides_the_password_of_keywords(
    call: Call, secured_postgres: SecuredPostgres, name: str
) -> None:
    done = call("config", "show", settings=settings_of(secured_postgres, name, "keywords"))
    assert done.code == 0, done
    assert "for-trade" not in done.out + done.err
    assert "host=localhost" in done.out
    assert "password=***" in done.out
