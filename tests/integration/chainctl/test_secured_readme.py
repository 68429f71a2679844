"""The lines of docs/operations.md for servers with TLS and a login, the whole path by them."""

from __future__ import annotations

import re
import secrets
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from local_stack.postgres import SUPERUSER
from tests.certificates import HOST
from tests.integration.chainctl.sizes import FILLED_ROWS
from tests.secured_kafka import PASSWORDS, PREFIX, SEQUENCER, SecuredKafka
from tests.secured_postgres import TRADER, SecuredPostgres

if TYPE_CHECKING:
    from tests.integration.chainctl.conftest import Call

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]

PAGE = Path(__file__).parents[3] / "docs" / "operations.md"


def settings_by_the_readme(replaced: dict[str, str]) -> dict[str, str]:
    """Return what a shell has set after the lines of the page, other names put into them."""
    text = PAGE.read_text(encoding="utf-8")
    (lines,) = re.findall(r"^```sh\n(export CHAINCTL_DATABASE=.*?)^```$", text, re.M | re.S)
    for there, here in replaced.items():
        assert there in lines, there
        lines = lines.replace(there, here)
    shell = subprocess.run(
        ["bash", "-euc", f"{lines}\nenv"], env={}, capture_output=True, text=True, check=True
    )
    pairs = (line.partition("=") for line in shell.stdout.splitlines())
    return {name: value for name, _, value in pairs if name.startswith(("CHAINCTL_", "PG"))}


def test_whole_path_runs_by_the_lines_of_the_readme(
    call: Call, secured_postgres: SecuredPostgres, secured_kafka: SecuredKafka, tmp_path: Path
) -> None:
    name = f"test_{secrets.token_hex(8)}"
    secured_postgres.make_database(name)
    password, passfile = tmp_path / "kafka-password", tmp_path / "pgpass"
    password.write_text(PASSWORDS[SEQUENCER] + "\n")
    own = secured_postgres.environment["PGPASSWORD"]
    passfile.write_text(f"{HOST}:{secured_postgres.port}:{name}:{TRADER}:{own}\n")
    for file in (password, passfile):
        file.chmod(0o600)
    settings = settings_by_the_readme(
        {
            "sequencer_writer@db.example/orders": f"{TRADER}@{HOST}:{secured_postgres.port}/{name}",
            "/etc/orderchain/database-ca.pem": str(secured_postgres.authority.path),
            "/etc/orderchain/pgpass": str(passfile),
            "broker-1.example:9094": secured_kafka.at("LOGIN"),
            "USERNAME=sequencer": f"USERNAME={SEQUENCER}",
            "/etc/orderchain/kafka-password": str(password),
            "/etc/orderchain/kafka-ca.pem": str(secured_kafka.authority.path),
        }
    )
    assert len(settings) == 8
    owner = secured_postgres.server.dsn(SUPERUSER, name).replace("127.0.0.1", HOST)
    topic = f"{PREFIX}{secrets.token_hex(6)}"
    orders, journal = tmp_path / "o.csv", tmp_path / "journal"
    orders.write_text("n\n" + "".join(f"{number}\n" for number in range(1, FILLED_ROWS + 1)))
    sources = ["--source", "database", "--source", "topic", "--source", f"journal:{journal}"]
    for arguments in (
        ["chain", "create", 1, "--topic", topic, "--database", owner],
        ["sequence", "--chain", 1, "--input", orders],
        ["receive", "--chain", 1, "--output", journal],
        ["verify", "--chain", 1, "--local", *sources],
        ["verify", "--chain", 1, "--local", "--seals", "--source", "database"],
        ["status", "--chain", 1],
        ["lag", "--chain", 1],
    ):
        done = call(*arguments, settings=settings)
        assert done.code == 0, (arguments, done)
        assert own not in done.out + done.err
        assert PASSWORDS[SEQUENCER] not in done.out + done.err
    assert len(journal.read_text().splitlines()) == FILLED_ROWS
