"""The same verification on a real standalone cluster: by `--master`, and by `spark-submit`."""

import asyncio
import json
import os
import random
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import chainctl
from tests.builders.orders import order_file
from tests.command_call import Done
from tests.integration.chain_verifier.cluster import (
    SUBMIT,
    WORKERS,
    SparkCluster,
    spark_environment,
)
from tests.integration.chainctl.conftest import must
from tests.programs import completed
from tests.stored_pages import execute

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.timeout(400)]

ROWS = 2_000
DELETED = 1_234

TWICE = """
import sys
from chain_verifier.spark.session import open_session
from chainctl.main import main

master, own, shared, *verify = sys.argv[1:]
with open_session(master):
    for folder in (own, shared):
        code = main([*verify, "--master", master, "--findings", folder])
        for stream in (sys.stdout, sys.stderr):
            print(f"exit code {code}", file=stream, flush=True)
"""
"""Two verifications in one Spark: another one would only start the same executors again."""


SHOW = """
from chain_verifier.spark.session import open_session

with open_session(None) as spark:
    print(*map(spark.conf.get, ("spark.sql.shuffle.partitions", "spark.sql.session.timeZone")))
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    with SparkCluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture
def chain_id() -> int:
    """A chain of its own for each test: databases are fresh, topics are not."""
    return random.SystemRandom().randrange(1_000, 2**31)


@pytest.fixture
def settings(
    orderchain_environment: dict[str, str], chain_id: int, tmp_path: Path
) -> dict[str, str]:
    """The settings of a database and a topic that hold the rows 1 to ROWS."""
    path = order_file(tmp_path / "o.csv", ROWS)
    must("chain", "create", chain_id, settings=orderchain_environment)
    must("sequence", "--chain", chain_id, "--input", path, settings=orderchain_environment)
    return orderchain_environment


def test_findings_in_a_folder_that_the_workers_do_not_share_are_not_lost_in_silence(
    cluster: SparkCluster, settings: dict[str, str], chain_id: int, tmp_path: Path
) -> None:
    """Under one name each process finds a folder of its own: its working directory."""
    settings = settings | {"CWD": str(tmp_path)}
    change = f"UPDATE chain_event SET key = key || 'x' WHERE chain_id = {chain_id}"  # noqa: S608
    asyncio.run(execute(settings["CHAINCTL_DATABASE"], change))
    folders = ("/proc/self/cwd/found", tmp_path / "shared")
    verify = ("verify", "--chain", chain_id, "--json", "--source", "database", "--source", "topic")
    done = run(sys.executable, "-c", TWICE, cluster.master, *folders, *verify, settings=settings)
    assert done.code == 0, done
    lines = done.err.partition("exit code 3\n")[0].splitlines()
    # Steps that take long are shown beside it.
    (line,) = (each for each in lines if "could not be written" in each)
    assert f"findings could not be written to /proc/self/cwd/found: 0 of {ROWS}" in line
    nothing, own, rest = done.out.partition("exit code 3\n")
    assert (nothing, own) == ("", "exit code 3\n"), done
    report, _, shared = rest.rpartition("exit code ")
    assert (shared, json.loads(report)["row_counts"]) == ("1\n", {"differing": ROWS}), done
    parts = (tmp_path / "shared" / "findings.json").glob("*.json")
    assert sum(len(part.read_text().splitlines()) for part in parts) == ROWS


def run(*arguments: object, settings: Mapping[str, str]) -> Done:
    environment = spark_environment(os.environ) | dict(settings)
    done = completed(*arguments, env=environment, cwd=settings["CWD"])
    return Done(done.returncode, done.stdout, done.stderr)


def test_settings_given_to_spark_submit_are_kept_unless_a_check_needs_its_own(
    tmp_path: Path,
) -> None:
    program = tmp_path / "show.py"
    program.write_text(SHOW)
    given = ("spark.sql.shuffle.partitions=7", "spark.sql.session.timeZone=CET")
    done = run(
        *(SUBMIT, "--master", "local[1]", *(word for each in given for word in ("--conf", each))),
        program,
        settings={"CWD": str(tmp_path), "PYSPARK_PYTHON": sys.executable},
    )
    assert done.out.split() == ["7", "UTC"], done


def test_verify_on_a_cluster_proves_a_chain_and_names_what_is_deleted_then(
    cluster: SparkCluster, settings: dict[str, str], chain_id: int, tmp_path: Path
) -> None:
    # Away from the checkout, so that workers and driver find the package where it is installed.
    settings = settings | {"CWD": str(tmp_path)}
    verify = ("verify", "--chain", chain_id, "--source", "database", "--json")
    by_master = (sys.executable, "-m", "chainctl", *verify, "--master", cluster.master)
    known = [set(cluster.executors(number)) for number in range(WORKERS)]
    clean = run(*by_master, "--source", "topic", "--seals", settings=settings)
    assert clean.code == 0, clean
    report: dict[str, Any] = json.loads(clean.out)
    assert (report["verdict"], report["head"]) == ("complete", ROWS)
    assert [source["rows"] for source in report["sources"]] == [ROWS, ROWS]
    logs = [set(cluster.executors(number)) - known[number] for number in range(WORKERS)]
    assert [len(log) for log in logs] == [1, 1]
    assert any("Finished task" in log.read_text() for (log,) in logs)

    delete = f"DELETE FROM chain_event WHERE id = {DELETED}"  # noqa: S608 - a number of ours
    asyncio.run(execute(settings["CHAINCTL_DATABASE"], delete))
    program = Path(chainctl.__file__).parent / "__main__.py"
    submitted = run(
        *(SUBMIT, "--master", cluster.master),
        *(program, *verify, "--seals"),
        settings=settings | {"PYSPARK_PYTHON": sys.executable},
    )
    assert submitted.code == 1, submitted
    found = json.loads(submitted.out)["findings"]
    kinds = {finding["kind"]: finding for finding in found}
    assert sorted(kinds) == ["batch_count", "gap"], submitted
    assert (kinds["gap"]["after_id"], kinds["gap"]["until_id"]) == (DELETED - 1, DELETED)
    # They ran on the cluster: each worker has started an executor for either.
    every = [set(cluster.executors(number)) - known[number] for number in range(WORKERS)]
    assert [len(log) for log in every] == [2, 2]
