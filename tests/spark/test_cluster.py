"""The same verification on a real standalone cluster: by `--master`, and by `spark-submit`."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import chainctl
from chain_verifier.packages import POSTGRESQL_JDBC
from tests.cli.conftest import Done, must
from tests.spark.cluster import SUBMIT, WORKERS, SparkCluster, spark_environment
from tests.spark.storing import execute

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.timeout(400)]

CHAIN_ID = 9_107
ROWS = 2_000
DELETED = 1_234
DEADLINE_SECONDS = 180.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    with SparkCluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture
def settings(orderchain_environment: dict[str, str], tmp_path: Path) -> dict[str, str]:
    """The settings of a database and a topic that hold the rows 1 to ROWS."""
    path = tmp_path / "o.csv"
    path.write_text("n\n" + "".join(f"{number}\n" for number in range(1, ROWS + 1)))
    must("chain", "create", CHAIN_ID, settings=orderchain_environment)
    must("sequence", "--chain", CHAIN_ID, "--input", path, settings=orderchain_environment)
    return orderchain_environment


def run(*arguments: object, settings: Mapping[str, str]) -> Done:
    done = subprocess.run(
        [*map(str, arguments)],
        env=spark_environment(os.environ) | dict(settings),
        cwd=Path(settings["CWD"]),
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        check=False,
    )
    return Done(done.returncode, done.stdout, done.stderr)


def test_verify_on_a_cluster_proves_a_chain_and_names_what_is_deleted_then(
    cluster: SparkCluster, settings: dict[str, str], tmp_path: Path
) -> None:
    # Away from the checkout, so that workers and driver find the package where it is installed.
    settings = settings | {"CWD": str(tmp_path)}
    verify = ("verify", "--chain", CHAIN_ID, "--source", "database", "--json")
    by_master = (sys.executable, "-m", "chainctl", *verify, "--master", cluster.master)
    clean = run(*by_master, "--source", "topic", "--seals", settings=settings)
    assert clean.code == 0, clean
    report: dict[str, Any] = json.loads(clean.out)
    assert (report["verdict"], report["head"]) == ("complete", ROWS)
    assert [source["rows"] for source in report["sources"]] == [ROWS, ROWS]
    logs = [cluster.executors(number) for number in range(WORKERS)]
    assert [len(log) for log in logs] == [1, 1]
    assert any("Finished task" in log.read_text() for (log,) in logs)

    delete = f"DELETE FROM chain_event WHERE id = {DELETED}"  # noqa: S608 - a number of ours
    asyncio.run(execute(settings["CHAINCTL_DATABASE"], delete))
    program = Path(chainctl.__file__).parent / "__main__.py"
    submitted = run(
        *(SUBMIT, "--master", cluster.master, "--packages", POSTGRESQL_JDBC),
        *(program, *verify, "--seals"),
        settings=settings | {"PYSPARK_PYTHON": sys.executable},
    )
    assert submitted.code == 1, submitted
    found = json.loads(submitted.out)["findings"]
    kinds = {finding["kind"]: finding for finding in found}
    assert sorted(kinds) == ["batch_count", "gap"], submitted
    assert (kinds["gap"]["after_id"], kinds["gap"]["until_id"]) == (DELETED - 1, DELETED)
    # They ran on the cluster: each worker has started an executor for either.
    assert [len(cluster.executors(number)) for number in range(WORKERS)] == [2, 2]
