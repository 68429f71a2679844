"""A cluster of two workers of 1 GB: the page as typed, and what breaks while a replay runs."""

from __future__ import annotations

import asyncio
import fcntl
import os
import random
import select
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from msgspec.structs import replace

from chain_verifier.dataframe.fold import digest_of
from tests.command_call import Done
from tests.pages import ROOT, blocks_of
from tests.programs import completed

from ..cluster import SUBMIT, ConnectServer, SparkCluster, on_small_disk, spark_environment
from ..planted_faults import CHAIN_ID, chain_of
from ..stored_rows import store

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

ROWS = chain_of(random.Random(41), 40)

PAGE = """
import sys
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
url, read, fold = sys.argv[1:]
names = {"spark": spark, "url": url}
exec(read, names)
exec(fold, names)
replayed = sum(row["rows"] for row in names["replayed"].states.collect())
print(names["orders"].count(), "rows;", replayed)
spark.stop()
"""

GATE = """
import fcntl
import operator
import os
from functools import partial
from pathlib import Path
from orderchain.spark import Fold

FOLDER = Path({folder!r})

def step(count, orders):
    # Say where this runs; go on when nobody holds the gate.
    with os.fdopen(os.open(FOLDER / "begun", os.O_RDWR), "w") as begun:
        begun.write(os.getcwd() + "\\n")
    with (FOLDER / "gate").open() as gate:
        fcntl.flock(gate, fcntl.LOCK_SH)
    return count + len(orders), ()

# No function of it says that it is of this module: the command sends the one that it was given.
COUNT = Fold(start=partial(operator.countOf, ()), step=partial(operator.call, step))
"""

COUNT = """
from orderchain.spark import Fold

COUNT = Fold(start=lambda group: 0, step=lambda count, orders: (count + len(orders), ()))
"""

STREAM = """
import sys
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
import orderchain.spark
import count_orders

state = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
settings = SparkSession.builder.config("spark.sql.streaming.stateStore.providerClass", state)
spark = settings.config("spark.sql.shuffle.partitions", "2").getOrCreate()
url, chain, folder = sys.argv[1:]
orderchain.spark.register(spark)

def replayed(reader):
    orders = reader.format("orderchain").option("url", url).load(chain)
    return orderchain.spark.replay(orders, count_orders.COUNT).states

query = replayed(spark.readStream).writeStream.format("parquet").option("path", folder + "/states")
query = query.option("checkpointLocation", folder + "/checkpoint").trigger(availableNow=True)
while True:
    try:
        query.start().awaitTermination()
        break
    except StreamingQueryException as error:  # Spark gives its Python ten seconds to start
        if "failed to connect back" not in str(error):
            raise
found = spark.read.parquet(folder + "/states")
for states in (found, replayed(spark.read)):
    print(*((row["rows"], row["digest"].hex()) for row in states.collect()))
print("PYTHONPATH is set:", "PYTHONPATH" in spark.sparkContext.environment)
spark.stop()
"""

COUNT_OF_MODULE = """
from functools import partial
from orderchain.spark import Fold

def start(group):
    return 0

def step(by, count, orders):
    return count + by * len(orders), ()

COUNT = Fold(start=partial(start), step=partial(step, 1))
"""

STATES = '{"group": "", "id": 1, "digest": "00"}\n'


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[SparkCluster]:
    with SparkCluster(tmp_path) as running:
        yield running


@pytest.fixture
def url(database: str, role_dsn: Callable[[str], str]) -> str:
    asyncio.run(store(database, ROWS))
    return role_dsn("auditor")


@pytest.fixture
def bare_python(tmp_path: Path) -> str:
    """A Python with everything that the package requires, and without the package."""
    path = tmp_path / "python"
    packages = sysconfig.get_paths()["purelib"]
    # -S leaves out the links to this checkout.
    path.write_text(
        f'#!/bin/sh\nexport PYTHONPATH="$PYTHONPATH:{packages}"\nexec {sys.executable} -S "$@"\n'
    )
    path.chmod(0o755)
    return str(path)


def environment(database: str, url: str) -> dict[str, str]:
    kept = spark_environment(os.environ)
    return kept | {"CHAINCTL_DATABASE": database, "CHAINCTL_AUDIT_DATABASE": url}


def run(*arguments: object, environ: Mapping[str, str], folder: Path) -> Done:
    done = completed(*arguments, env=environ, cwd=folder)
    return Done(done.returncode, done.stdout, done.stderr)


def test_page_runs_as_typed_where_the_package_is_not_installed(
    cluster: SparkCluster, database: str, url: str, bare_python: str, tmp_path: Path
) -> None:
    without = run(bare_python, "-c", "import chain_verifier.dataframe", environ={}, folder=tmp_path)
    assert "No module named 'chain_verifier" in without.err
    read, fold, *_ = [
        block.text.replace('load("1")', f'load("{CHAIN_ID}")')
        for block in blocks_of(ROOT / "docs/spark.md")
        if block.language == "python"
    ]
    program = tmp_path / "page.py"
    program.write_text(PAGE)
    environ = environment(database, url)
    shown = f"{len(ROWS)} rows; {len(ROWS)}"
    submitted = run(
        *(SUBMIT, "--master", cluster.master, "--conf", f"spark.pyspark.python={bare_python}"),
        *("--conf", f"spark.pyspark.driver.python={sys.executable}", program, url, read, fold),
        environ=environ,
        folder=tmp_path,
    )
    assert submitted.code == 0, submitted.err[-3_000:]
    assert shown in submitted.out
    with ConnectServer(tmp_path, cluster.master, bare_python) as server:
        connected = run(
            *(sys.executable, program, url, read, fold),
            environ=environ | {"SPARK_REMOTE": server.remote},
            folder=tmp_path,
        )
    assert connected.code == 0, connected.err[-3_000:]
    assert shown in connected.out


def test_stream_is_replayed_where_neither_package_nor_module_is_installed(
    cluster: SparkCluster, url: str, bare_python: str, tmp_path: Path
) -> None:
    """The driver's own Python of a stream's state has no file that was sent to workers."""
    program, elsewhere = tmp_path / "app" / "run.py", tmp_path / "elsewhere"
    program.parent.mkdir()
    elsewhere.mkdir()
    program.write_text(STREAM)
    (program.parent / "count_orders.py").write_text(COUNT_OF_MODULE)
    done = run(
        *(SUBMIT, "--master", cluster.master, "--conf", f"spark.pyspark.python={bare_python}"),
        *("--conf", f"spark.pyspark.driver.python={sys.executable}"),
        *(program, url, CHAIN_ID, tmp_path),
        environ=spark_environment(os.environ),
        folder=elsewhere,
    )
    assert done.code == 0, done.out[-3_000:]
    stream, frame, is_set = done.out.splitlines()
    assert stream == frame == str((len(ROWS), digest_of(len(ROWS)).hex()))
    assert is_set.endswith("False")


class Gated:
    """A replay by the command on a cluster, which waits inside its first task."""

    def __init__(self, folder: Path, master: str, environ: Mapping[str, str]) -> None:
        (folder / "gate_fold.py").write_text(GATE.format(folder=str(folder)))
        (folder / "states.json").write_text(STATES)
        os.mkfifo(folder / "begun")
        self._begun = os.open(folder / "begun", os.O_RDWR)
        self._gate = (folder / "gate").open("w")
        fcntl.flock(self._gate, fcntl.LOCK_EX)
        verify = ("verify", "replay", "gate_fold:COUNT", "--chain", str(CHAIN_ID))
        states = ("--states", f"json:{folder}/states.json")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "chainctl", *verify, *states, "--master", master],
            env=environ, cwd=folder, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def __enter__(self) -> Gated:
        return self

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.communicate()
        self._gate.close()
        os.close(self._begun)

    def begun(self) -> str:
        """Wait for the task; return the folder of its executor. Fails if the command ends first."""
        ended = os.pidfd_open(self.process.pid)
        try:
            ready, _, _ = select.select([self._begun, ended], [], [])
        finally:
            os.close(ended)
        assert self._begun in ready, self.end()
        return os.read(self._begun, 4_096).decode().splitlines()[0]

    def open(self) -> None:
        """Let tasks go on."""
        fcntl.flock(self._gate, fcntl.LOCK_UN)

    def end(self) -> Done:
        out, err = self.process.communicate()
        return Done(self.process.returncode, out, err)


def test_replay_survives_a_worker_that_is_killed(
    cluster: SparkCluster, database: str, url: str, tmp_path: Path
) -> None:
    with Gated(tmp_path, cluster.master, environment(database, url)) as gated:
        killed = cluster.worker_of(gated.begun())
        cluster.kill_worker(killed)
        other = gated.begun()
        assert cluster.worker_of(other) != killed
        gated.open()
        done = gated.end()
    # The only stored state is none of this fold.
    assert done.code == 1, done
    assert "1 state went wrong" in done.out


def test_ctrl_c_ends_a_replay_on_a_cluster(
    cluster: SparkCluster, database: str, url: str, tmp_path: Path
) -> None:
    with Gated(tmp_path, cluster.master, environment(database, url)) as gated:
        gated.begun()
        gated.process.send_signal(signal.SIGINT)
        done = gated.end()
        gated.open()
    assert done.code == 130, done
    assert "Traceback" not in done.err


def test_full_disk_of_the_workers_is_named(
    database: str, role_dsn: Callable[[str], str], tmp_path: Path
) -> None:
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run([*on_small_disk(small), "true"], check=False).returncode:
        pytest.skip("processes here cannot have a file system of their own")
    rng = random.Random(42)
    rows = [replace(row, payload=rng.randbytes(1_500)) for row in chain_of(rng, 12_000)]
    asyncio.run(store(database, rows, 1_000, 1_000_000))
    (tmp_path / "count_fold.py").write_text(COUNT)
    (tmp_path / "states.json").write_text(STATES)
    verify = ("verify", "replay", "count_fold:COUNT", "--chain", CHAIN_ID)
    states = ("--states", f"json:{tmp_path}/states.json")
    with SparkCluster(tmp_path, small=small) as cluster:
        done = run(
            *(sys.executable, "-m", "chainctl", *verify, *states, "--master", cluster.master),
            environ=environment(database, role_dsn("auditor")),
            folder=tmp_path,
        )
    assert done.code == 3, done
    assert "No space left on device" in done.err
    assert "Traceback" not in done.err
