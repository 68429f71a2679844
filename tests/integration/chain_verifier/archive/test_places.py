"""Archive, retention, journals and reports by URL: a folder's, and those of an object store."""

import asyncio
import os
import random
import subprocess
import sys
import time
import venv
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from chain_verifier.archive.manifest import chain_folder, held_manifest
from chain_verifier.places import open_to_read, place_of, write_text
from chainctl.main import main
from local_stack.process import free_port
from tests.integration.chain_verifier.cluster import SparkCluster, spark_environment
from tests.integration.chain_verifier.planted_faults import CHAIN_ID, chain_of, head_of, id_of
from tests.integration.chain_verifier.stored_rows import PARTITION_IDS, store
from tests.opened import connected
from tests.programs import output_of

ROWS = chain_of(random.Random(4), 120)
MISSING = id_of(ROWS[50])
SERVER_SECONDS = 60

ON_SPARK = """
import sys
import orderchain.spark
from pyspark.sql import SparkSession

master, archive, missing = sys.argv[1:]
spark = SparkSession.builder.master(master).config("spark.ui.enabled", "false").getOrCreate()
orderchain.spark.register(spark)
rows = spark.read.format("orderchain").option("source", "archive:" + archive).load()
lacking = rows.where("id != " + missing)
found = [orderchain.spark.verify_frame(each, pid="pid").collect() for each in (rows, lacking)]
print(rows.count(), *((row["kind"], row["until_id"]) for each in found for row in each))
"""


@pytest.fixture(scope="module")
def store_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A bucket of a real server of S3's protocol, in an environment of its own."""
    home = tmp_path_factory.mktemp("moto")
    venv.create(home, with_pip=True)
    pip = (home / "bin" / "python", "-m", "pip", "install", "--quiet", "moto[s3,server]>=5,<6")
    subprocess.run(pip, check=True)
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    command = (home / "bin" / "moto_server", "-H", "127.0.0.1", "-p", str(port))
    with (
        subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server,
        pytest.MonkeyPatch.context() as patch,
    ):
        known = {
            "AWS_ACCESS_KEY_ID": "auditor",
            "AWS_SECRET_ACCESS_KEY": "sesame",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_ENDPOINT_URL": address,
        }
        for name, value in known.items():
            patch.setenv(name, value)
        _make_bucket(f"{address}/box")
        yield "s3://box"
        server.terminate()


def _make_bucket(address: str) -> None:
    until = time.monotonic() + SERVER_SECONDS
    for _ in count():
        try:
            urlopen(Request(address, method="PUT"), timeout=5).close()  # noqa: S310 - on loopback
            return
        except OSError:
            assert time.monotonic() < until, "the object store did not start"


@pytest.fixture
def archive(
    request: pytest.FixtureRequest, database: str, role_dsn: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
) -> str:  # fmt: skip
    """The URL of an archive of a verified chain."""
    asyncio.run(store(database, ROWS))
    asyncio.run(publish(database))
    monkeypatch.setenv("CHAINCTL_DATABASE", database)
    monkeypatch.setenv("CHAINCTL_AUDIT_DATABASE", role_dsn("auditor"))
    folder = request.getfixturevalue("store_url") if request.param else f"file://{tmp_path}"
    since = ("--local", "--chain", str(CHAIN_ID), "--source", "database", "--since-verified")
    assert main(["verify", *since]) == 0
    # The bucket is that of the module.
    return f"{folder}/{tmp_path.name}/archive"


async def publish(dsn: str) -> None:
    async with connected(dsn) as connection:
        await connection.execute("UPDATE chain_head SET published_id = last_id")


KINDS = [
    pytest.param(False, id="file"),
    pytest.param(True, id="s3", marks=[pytest.mark.nightly, pytest.mark.timeout(600)]),
]


@pytest.mark.parametrize("archive", KINDS, indirect=True)
def test_archive_journal_and_report_are_at_urls(
    archive: str, capsys: pytest.CaptureFixture[str]
) -> None:
    here = ("--chain", str(CHAIN_ID), "--archive", archive)
    assert main(["archive", *here]) == 0
    assert main(["archive", *here, "--check"]) == 0
    assert f"whole; {len(ROWS)} rows" in capsys.readouterr().out
    place = place_of("--archive", archive)
    part = held_manifest(place, CHAIN_ID).parts[0]
    file = chain_folder(place, CHAIN_ID) / part.rows.name
    with open_to_read(file) as rows:
        content = rows.read()
    write_text(file, "other")
    until = ("--until", str(2 * PARTITION_IDS), "--key-window-rows", "0")
    assert main(["archive", *here, "--check"]) == 1
    assert main(["retention", *here, *until]) == 2
    assert "is not the file that was written" in capsys.readouterr().err
    with file.open("wb") as again:
        again.write(content)
    assert main(["retention", *here, *until]) == 0, capsys.readouterr()
    assert "boundary 0" not in capsys.readouterr().out

    journal, page = f"{archive}/journal.jsonl", f"{archive}/report.html"
    write_text(place_of("journal", journal), "".join(f"{row.line()}\n" for row in ROWS))
    source = ("--local", "--chain", str(CHAIN_ID), "--source", f"journal:{journal}")
    assert main(["verify", *source, "--head", str(head_of(ROWS)), "--report", page]) == 0
    with open_to_read(place_of("--report", page)) as shown:
        assert b"<html" in shown.read()


@pytest.mark.nightly
@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.parametrize("archive", [True], ids=["s3"], indirect=True)
def test_cluster_of_spark_verifies_the_rows_of_an_archive_at_a_url(
    archive: str, tmp_path: Path
) -> None:
    assert main(["archive", "--chain", str(CHAIN_ID), "--archive", archive]) == 0
    with SparkCluster(tmp_path) as cluster:
        environment = spark_environment(os.environ) | {"PYSPARK_PYTHON": sys.executable}
        program = (sys.executable, "-c", ON_SPARK, cluster.master, archive, MISSING)
        shown = output_of(*program, env=environment, cwd=tmp_path)
    assert shown.split(maxsplit=1) == [str(len(ROWS)), f"('gap', {MISSING})\n"]


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("url", "words"),
    [("ssh://host/x", "a URL that can be used"), ("s3://", "a URL that can be used")],
)
def test_url_that_nothing_reads_is_refused_in_one_line(
    capsys: pytest.CaptureFixture[str], url: str, words: str
) -> None:
    assert main(["archive", "--chain", "1", "--archive", url, "--check"]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("chainctl: ") == 1
