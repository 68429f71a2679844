"""Servers that are not there, do not answer, or do not want us: one line, exit code 2."""

import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from aiokafka.admin import NewPartitions

from tests.integration.chainctl.conftest import Admin, Ctl, Refused

SECRET = "hunter2hunter2"


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port where connections are accepted by the kernel and never answered."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield server.getsockname()[1]


@pytest.fixture
def input_file(tmp_path: Path) -> Path:
    path = tmp_path / "o.csv"
    path.write_text("a\n1\n")
    return path


def with_database(settings: dict[str, str], dsn: str) -> dict[str, str]:
    return {"CHAINCTL_DATABASE": dsn, "CHAINCTL_KAFKA": settings["CHAINCTL_KAFKA"]}


@pytest.mark.parametrize(
    "arguments",
    [
        ["schema", "apply"],
        ["chain", "list"],
        ["chain", "create", "1"],
        ["status", "--chain", "1"],
        ["fill", "--chain", "1", "--after", "0", "--until", "1"],
        ["receive", "--chain", "1", "--output", "j"],
        ["sequence", "--chain", "1", "--input", "o.csv"],
    ],
)
def test_command_without_a_database_says_how_to_name_one(
    refused: Refused, input_file: Path, arguments: list[str]
) -> None:
    line = refused(*arguments)
    assert "database was '', expected a PostgreSQL URL, by --database, CHAINCTL_DATABASE" in line


@pytest.mark.parametrize("arguments", [["topic", "create", "t"],
                                       ["sequence", "--intake-topic", "t"]])  # fmt: skip
def test_command_without_kafka_says_how_to_name_it(
    refused: Refused, module_settings: dict[str, str], chain: int, input_file: Path,
    arguments: list[str],
) -> None:  # fmt: skip
    settings = {"CHAINCTL_DATABASE": module_settings["CHAINCTL_DATABASE"]}
    if arguments[0] == "sequence":
        arguments = [*arguments, "--chain", str(chain)]
    assert "kafka was '', expected" in refused(*arguments, settings=settings)


def test_database_that_refuses_is_named_without_its_password(
    refused: Refused, module_settings: dict[str, str]
) -> None:
    dsn = module_settings["CHAINCTL_DATABASE"]
    parts = urlsplit(dsn)
    wrong = parts._replace(netloc=f"postgres:{SECRET}@{parts.hostname}:{parts.port}").geturl()
    closed = f"postgresql://u:{SECRET}@127.0.0.1:1/d"
    for address, shown in (
        (wrong, "wrong user or password"),
        (f"{dsn}_not", "expected a database that exists"),
        (closed, "expected a server that listens at 127.0.0.1:1"),
    ):
        settings = with_database(module_settings, address)
        for command in (["chain", "list"], ["fill", "--chain", 1, "--after", 0, "--until", 1]):
            assert shown in refused(*command, settings=settings, hidden=SECRET)


def test_database_whose_port_is_silent_is_refused_by_the_deadline(
    refused: Refused, module_settings: dict[str, str], silent_port: int, input_file: Path
) -> None:
    dsn = f"postgresql://u:{SECRET}@127.0.0.1:{silent_port}/d"
    for arguments in (
        ["sequence", "--chain", 1, "--input", input_file],
        ["receive", "--chain", 1, "--output", "j"],
    ):
        line = refused(
            *arguments, "--connect-seconds", "0.5", settings=with_database(module_settings, dsn)
        )
        assert "it is silent" in line


WITH_SPARK = pytest.mark.nightly
VERIFYING = [
    ["verify", "--source", "database", "--local"],
    pytest.param(["verify", "--source", "database"], marks=WITH_SPARK),
    ["archive", "--archive", "folder"],
    ["retention", "--archive", "folder", "--until", "1"],
    ["repair", "--source", "journal:j", "--reason", "r"],
]


@pytest.mark.parametrize("arguments", VERIFYING)
def test_verifier_refuses_a_silent_database_by_the_deadline(
    refused: Refused, module_settings: dict[str, str], silent_port: int, arguments: list[str]
) -> None:
    dsn = f"postgresql://u:{SECRET}@127.0.0.1:{silent_port}/d"
    settings = with_database(module_settings, dsn)
    line = refused(*arguments, "--chain", 1, "--connect-seconds", "0.5", settings=settings)
    assert "it is silent" in line


@pytest.mark.parametrize("mode", [["--local"], pytest.param([], marks=WITH_SPARK)])
def test_verifier_refuses_a_silent_broker_by_the_deadline(
    refused: Refused, module_settings: dict[str, str], silent_port: int, mode: list[str]
) -> None:
    settings = {**module_settings, "CHAINCTL_KAFKA": f"127.0.0.1:{silent_port}"}
    asked = ["verify", "--chain", "1", "--source", "topic", "--connect-seconds", "0.5", *mode]
    line = refused(*asked, settings=settings)
    assert f"kafka was '127.0.0.1:{silent_port}', expected a broker that answers" in line


def test_kafka_whose_port_is_closed_or_silent_is_refused(
    refused: Refused, ctl: Ctl, module_settings: dict[str, str], chain: int, silent_port: int,
    input_file: Path,
) -> None:  # fmt: skip
    sequence, receive = ["sequence", "--input", input_file], ["receive", "--output", "j"]
    for arguments, port in ((sequence, 1), (receive, 1), (sequence, silent_port)):
        settings = {**module_settings, "CHAINCTL_KAFKA": f"127.0.0.1:{port}"}
        line = refused(*arguments, "--chain", chain, "--connect-seconds", "1", settings=settings)
        assert f"kafka was '127.0.0.1:{port}', expected a broker" in line
    rows = ctl("fill", "--chain", chain, "--after", 0, "--until", 0)
    assert rows.out == ""


def test_chain_that_was_never_created_is_refused_with_the_command_that_makes_it(
    ctl: Ctl, free_chain: int, input_file: Path
) -> None:
    for arguments in (
        ["sequence", "--input", input_file],
        ["receive", "--output", "j"],
        ["fill", "--after", 0, "--until", 1],
        ["status"],
        ["gaps"],
        ["lag"],
    ):
        line = ctl.refused(*arguments, "--chain", free_chain)
        assert f"chain was {free_chain}, expected a created chain (chainctl chain create" in line
    assert not (input_file.parent / "j").exists()


@pytest.mark.parametrize("fault", ["missing", "two partitions"])
def test_first_leader_refuses_an_unfit_topic_and_a_receiver_reads_the_database(
    ctl: Ctl, chain: int, admin: Admin, input_file: Path, fault: str
) -> None:
    topic = f"orderchain.{chain}"
    if fault == "missing":
        admin(lambda client: client.delete_topics([topic]))
    else:
        two = {topic: NewPartitions(total_count=2)}
        admin(lambda client: client.create_partitions(two))
    line = ctl.refused("sequence", "--input", input_file, "--chain", chain)
    assert topic in line
    assert fault == "missing" or "partition" in line
    done = ctl("receive", "--output", "j", "--chain", chain)
    assert done.code == 0, done
    assert "rows come from the database until it is there" in done.err
