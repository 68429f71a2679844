"""`chainctl` over servers that ask for TLS and a login: by flag, variable and file."""

import json
import re
import secrets
from pathlib import Path

import pytest

from local_stack.postgres import SUPERUSER
from tests.builders.orders import order_file
from tests.certificates import HOST
from tests.integration.chainctl.conftest import Call, Refused
from tests.integration.chainctl.sizes import FILLED_ROWS
from tests.programs import output_of
from tests.secured_kafka import PASSWORDS, PREFIX, RECEIVER, SEQUENCER, SecuredKafka
from tests.secured_postgres import CERTIFIED, TRADER, SecuredPostgres
from tests.spoiled_files import SPOILS, copied, spoiled

Settings = dict[str, str]

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]

PAGE = Path(__file__).parents[3] / "docs" / "operations.md"


@pytest.fixture(scope="module")
def name(secured_postgres: SecuredPostgres) -> str:
    """A database with the schema, on a server that takes TLS alone."""
    name = f"test_{secrets.token_hex(8)}"
    secured_postgres.make_database(name)
    return name


@pytest.fixture
def owner(secured_postgres: SecuredPostgres, name: str) -> str:
    return secured_postgres.server.dsn(SUPERUSER, name).replace("127.0.0.1", HOST)


@pytest.fixture
def topic() -> str:
    return f"{PREFIX}{secrets.token_hex(6)}"


def by_login(secured_kafka: SecuredKafka, user: str) -> Settings:
    """The variables for SASL_SSL with SCRAM."""
    return {
        "CHAINCTL_KAFKA": secured_kafka.at("LOGIN"),
        "CHAINCTL_KAFKA_SECURITY_PROTOCOL": "SASL_SSL",
        "CHAINCTL_KAFKA_SASL_MECHANISM": "SCRAM-SHA-512",
        "CHAINCTL_KAFKA_SASL_USERNAME": user,
        "CHAINCTL_KAFKA_SASL_PASSWORD": PASSWORDS[user],
        "CHAINCTL_KAFKA_SSL_CAFILE": str(secured_kafka.authority.path),
    }


def by_keywords(secured_postgres: SecuredPostgres, name: str) -> Settings:
    keywords = {
        "host": "localhost", "port": secured_postgres.port, "dbname": name, "user": TRADER,
        "password": "for-trade", "sslmode": "verify-full",
        "sslrootcert": str(secured_postgres.authority.path),
    }  # fmt: skip
    return {"CHAINCTL_DATABASE": " ".join(f"{key}='{each}'" for key, each in keywords.items())}


def by_certificate(secured_postgres: SecuredPostgres, name: str) -> Settings:
    tls = {"sslmode": "verify-full", "sslrootcert": str(secured_postgres.authority.path)}
    files = secured_postgres.authority.client(CERTIFIED)
    own = {"sslcert": str(files.certificate), "sslkey": str(files.key)}
    return {"CHAINCTL_DATABASE": secured_postgres.url(name, CERTIFIED, **tls, **own)}


def live(call: Call, settings: Settings, chain: int, topic: str, owner: str, folder: Path) -> None:
    """Make a chain, fill it, read it, prove it; no password is ever shown."""
    orders, journal = folder / "o.csv", folder / "journal"
    order_file(orders, FILLED_ROWS)
    sources = ["--source", "database", "--source", "topic", "--source", f"journal:{journal}"]
    on_chain = ("--chain", chain)
    for arguments in (
        ["chain", "create", chain, "--topic", topic, "--database", owner],
        ["sequence", *on_chain, "--input", orders],
        ["receive", *on_chain, "--output", journal],
        ["verify", *on_chain, "--local", *sources],
    ):
        done = call(*arguments, settings=settings)
        assert done.code == 0, (arguments, done)
        shown = done.out + done.err
        assert not [each for each in (*PASSWORDS.values(), "for-trade") if each in shown]
    assert len(journal.read_text().splitlines()) == FILLED_ROWS


def test_whole_path_runs_by_the_lines_of_the_page(
    call: Call, secured_postgres: SecuredPostgres, secured_kafka: SecuredKafka, name: str,
    owner: str, topic: str, tmp_path: Path,
) -> None:  # fmt: skip
    password, passfile = tmp_path / "kafka-password", tmp_path / "pgpass"
    password.write_text(PASSWORDS[SEQUENCER] + "\n")
    own = secured_postgres.environment["PGPASSWORD"]
    passfile.write_text(f"{HOST}:{secured_postgres.port}:{name}:{TRADER}:{own}\n")
    for file in (password, passfile):
        file.chmod(0o600)
    text = PAGE.read_text(encoding="utf-8")
    (lines,) = re.findall(r"^```sh\n(export CHAINCTL_DATABASE=.*?)^```$", text, re.M | re.S)
    for there, here in {
        "sequencer_writer@db.example/orders": f"{TRADER}@{HOST}:{secured_postgres.port}/{name}",
        "/etc/orderchain/database-ca.pem": str(secured_postgres.authority.path),
        "/etc/orderchain/pgpass": str(passfile),
        "broker-1.example:9094": secured_kafka.at("LOGIN"),
        "USERNAME=sequencer": f"USERNAME={SEQUENCER}",
        "/etc/orderchain/kafka-password": str(password),
        "/etc/orderchain/kafka-ca.pem": str(secured_kafka.authority.path),
    }.items():
        assert there in lines, there
        lines = lines.replace(there, here)
    shown = output_of("bash", "-euc", f"{lines}\nenv", env={})
    pairs = (line.partition("=") for line in shown.splitlines())
    settings = {key: each for key, _, each in pairs if key.startswith(("CHAINCTL_", "PG"))}
    assert len(settings) == 8
    live(call, settings, 1, topic, owner, tmp_path)


@pytest.mark.parametrize("database", [by_keywords, by_certificate])
def test_chain_lives_over_tls_by_variables_flags_and_certificates(
    call: Call, secured_postgres: SecuredPostgres, secured_kafka: SecuredKafka, name: str,
    owner: str, topic: str, free_chain: int, tmp_path: Path, database: object,
) -> None:  # fmt: skip
    settings = database(secured_postgres, name) | by_login(secured_kafka, SEQUENCER)  # type: ignore[operator]
    files = secured_kafka.authority.client(RECEIVER)
    mutual = (
        "--kafka", secured_kafka.at("MUTUAL"), "--kafka-security-protocol", "SSL",
        "--kafka-ssl-certfile", files.certificate, "--kafka-ssl-keyfile", files.key,
    )  # fmt: skip
    live(call, settings, free_chain, topic, owner, tmp_path)
    without = {key: each for key, each in settings.items() if "SASL" not in key}
    arguments = ("verify", "--chain", free_chain, "--local", "--source", f"topic:{topic}", *mutual)
    assert call(*arguments, settings=without).code == 0


def test_right_that_a_login_lacks_is_named(
    call: Call, refused: Refused, secured_postgres: SecuredPostgres, secured_kafka: SecuredKafka,
    name: str, owner: str, topic: str, free_chain: int,
) -> None:  # fmt: skip
    leader = {"CHAINCTL_DATABASE": owner, **by_login(secured_kafka, SEQUENCER)}
    reader = {**leader, **by_login(secured_kafka, RECEIVER)}
    create = ("chain", "create", free_chain, "--topic", topic)
    assert f"may create topic {topic} (ACL)" in refused(*create, settings=reader)
    created = call(*create, settings=leader)
    assert created.code == 0, created
    found = json.loads(call("doctor", "--chain", free_chain, "--json", settings=reader).out)
    (tried,) = [each for each in found if each["what"] == f"records of topic {topic}"]
    assert tried["state"] == "warning"
    assert f"a user 'receiver' that may write to topic {topic} (ACL)" in tried["found"]


@pytest.mark.parametrize("how", SPOILS)
def test_start_without_a_file_that_can_be_used_is_refused_in_one_line(
    refused: Refused, secured_postgres: SecuredPostgres, secured_kafka: SecuredKafka, name: str,
    tmp_path: Path, how: str,
) -> None:  # fmt: skip
    files = copied(secured_postgres.authority.client(CERTIFIED), tmp_path / "database")
    clients = copied(secured_kafka.authority.client(SEQUENCER), tmp_path / "kafka")
    tls = {"sslmode": "verify-full", "sslrootcert": str(secured_postgres.authority.path)}
    own = {"sslcert": str(files.certificate), "sslkey": str(files.key)}
    settings = {
        "CHAINCTL_DATABASE": secured_postgres.url(name, CERTIFIED, **tls, **own),
        "CHAINCTL_KAFKA": secured_kafka.at("MUTUAL"),
        "CHAINCTL_KAFKA_SECURITY_PROTOCOL": "SSL",
        "CHAINCTL_KAFKA_SSL_CAFILE": str(secured_kafka.authority.path),
        "CHAINCTL_KAFKA_SSL_CERTFILE": str(clients.certificate),
        "CHAINCTL_KAFKA_SSL_KEYFILE": str(clients.key),
    }
    orders = order_file(tmp_path / "orders.csv", 1)
    for field, path in (
        ("sslcert", files.certificate),
        ("sslkey", files.key),
        ("ssl_certfile", clients.certificate),
        ("ssl_keyfile", clients.key),
    ):
        with spoiled(path, how):
            for command in (
                ["sequence", "--chain", 1, "--input", orders],
                ["receive", "--chain", 1, "--output", tmp_path / "journal"],
                ["outbox", "relay"],
            ):
                line = refused(*command, settings=settings, hidden="PRIVATE KEY-----\n")
                assert re.search(f"{field} (of database )?was '{path}'", line), (command, line)


def test_config_show_hides_every_secret(
    call: Call, secured_postgres: SecuredPostgres, secured_kafka: SecuredKafka, name: str,
    tmp_path: Path,
) -> None:  # fmt: skip
    (tmp_path / "chainctl.toml").write_text("kafka_ssl_key_password = 'key-sesame'\n")
    settings = by_keywords(secured_postgres, name) | by_login(secured_kafka, RECEIVER)
    done = call("config", "show", "--json", settings={**settings, "CHAINCTL_KAFKAA": "x"})
    assert done.code == 2, done  # the key itself is missing
    assert done.err == (
        "chainctl: CHAINCTL_KAFKAA is set, but is no setting: ignored\n"
        "chainctl: kafka_ssl_key_password was '***', expected none without ssl_keyfile\n"
    )
    for secret in (PASSWORDS[RECEIVER], "key-sesame", "for-trade"):
        assert secret not in done.out
    shown = json.loads(done.out)
    hidden = {"value": "***", "source": "CHAINCTL_KAFKA_SASL_PASSWORD"}
    assert shown["kafka_sasl_password"] == hidden
    assert shown["kafka_ssl_key_password"] == {"value": "***", "source": "chainctl.toml"}
    assert "password=***" in shown["database"]["value"]
