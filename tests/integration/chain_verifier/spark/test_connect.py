"""Sessions over Connect: a chain is read, replayed and verified as by a Spark of this process."""

import asyncio
import json
import os
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.command_call import Done
from tests.integration.chain_verifier.cluster import ConnectServer, spark_environment
from tests.integration.chain_verifier.conftest import MakeFrames
from tests.integration.chain_verifier.planted_faults import CHAIN_ID, chain_of, id_of
from tests.integration.chain_verifier.published_frames import Topic
from tests.programs import completed
from tests.stored_pages import execute

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

ROWS = chain_of(random.Random(40), 60)
MISSING = id_of(ROWS[33])

CLIENT = """
import gc
import json
import sys
from pyspark.sql import SparkSession
from pyspark.sql.connect.client.reattach import ExecutePlanResponseReattachableIterator
import orderchain.spark
from chain_verifier.config import DatabaseSource, ParquetSource, TopicSource, VerifyRequest
from chain_verifier.spark.verify import verify
from tests.integration.chain_verifier.dataframe.books import BOOKS

gc.disable()  # what is left is found below
url, chain_id, kafka, topic, folder, missing = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
spark.conf.set("spark.sql.shuffle.partitions", "3")
settings = dict(spark.conf.getAll)
orderchain.spark.register(spark)
orders = spark.read.format("orderchain").option("url", url).load(chain_id)
replayed = orderchain.spark.replay(orders, BOOKS).states
states = replayed.collect()
orders.write.parquet(folder + "/rows")
orders.where("id != " + missing).write.parquet(folder + "/damaged")

def counts(*sources, **options):
    request = VerifyRequest(chain_id=int(chain_id), sources=sources, **options)
    return verify(request, spark).counts

database = DatabaseSource(database=url)
lacking = ParquetSource(path=folder + "/damaged")
found = {
    "session": type(spark).__module__,
    "rows": orders.count(),
    "replayed": sum(row["rows"] for row in states),
    "groups": sorted(row["group"] for row in states),
    "differences": orderchain.spark.replay(orders, BOOKS, states=replayed).differences.count(),
    "whole": counts(database, ParquetSource(path=folder + "/rows"), seals=True),
    "topic": counts(database, TopicSource(kafka=kafka, topic=topic)),
    "damaged": counts(database, lacking, findings_folder=folder + "/found"),
    "written": spark.read.json(folder + "/found/findings.json").count(),
    "settings_stay": dict(spark.conf.getAll) == settings,
}
# All sessions share it. It ended a query of this one when the collector found one of verify's.
spark.range(1).collect()
threads = ExecutePlanResponseReattachableIterator._release_thread_pool_instance
gc.collect()
found["threads_stay"] = (
    ExecutePlanResponseReattachableIterator._release_thread_pool_instance is threads
)
print(json.dumps(found))
"""


EDITED = '''
import importlib
import sys
from pathlib import Path
from pyspark.sql import SparkSession
import orderchain.spark
from chain_kernel.errors import SettingError

sys.path.insert(0, sys.argv[1])
FOLD = """
from orderchain.spark import Fold

def start(group):
    return 0

def step(state, orders):
    return state + NUMBER, []

FOLD = Fold(start=start, step=step, columns=("id",))
"""

def write(number):
    Path(sys.argv[1], "edited_fold.py").write_text(FOLD.replace("NUMBER", number))

def digest():
    spark = SparkSession.builder.getOrCreate()
    (state,) = orderchain.spark.replay(spark.range(1, 4), edited_fold.FOLD).states.collect()
    return state["digest"]

write("1")
import edited_fold
first = digest()
assert digest() == first
write("10")
importlib.reload(edited_fold)
try:
    digest()
except SettingError as error:
    print(error)
SparkSession.active().stop()
assert digest() != first
'''


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectServer]:
    with ConnectServer(tmp_path_factory.mktemp("connect"), "local[2]") as running:
        yield running


def run(server: ConnectServer, *arguments: object, **settings: str) -> Done:
    environment = spark_environment(os.environ) | {"SPARK_REMOTE": server.remote} | settings
    done = completed(sys.executable, *arguments, env=environment)
    return Done(done.returncode, done.stdout, done.stderr)


def test_notebook_over_connect_reads_replays_and_verifies(
    server: ConnectServer, database: str, role_dsn: Callable[[str], str], topic: Topic,
    make_frames: MakeFrames, tmp_path: Path,
) -> None:  # fmt: skip
    topic.send(*make_frames(ROWS))
    url = role_dsn("auditor")
    given = (url, CHAIN_ID, topic.servers, topic.name, tmp_path, MISSING)
    done = run(server, "-c", CLIENT, *given)
    assert done.code == 0, done.err[-4_000:]
    assert json.loads(done.out) == {
        "session": "pyspark.sql.connect.session",
        "rows": len(ROWS),
        "replayed": len(ROWS),
        "groups": ["buy", "cancel", "sell"],
        "differences": 0,
        "whole": {},
        "topic": {},
        "damaged": {"gap": 1, "lacking": 1},
        "written": 2,
        "settings_stay": True,
        "threads_stay": True,
    }

    # As a command, on a chain that was damaged since.
    asyncio.run(execute(database, f"DELETE FROM chain_event WHERE id = {MISSING}"))  # noqa: S608
    verify = ("-m", "chainctl", "verify", "--chain", CHAIN_ID, "--source", "database", "--json")
    settings = {"CHAINCTL_DATABASE": database, "CHAINCTL_AUDIT_DATABASE": url}
    damaged = run(server, *verify, "--master", server.remote, **settings)
    assert damaged.code == 1, damaged
    (found,) = json.loads(damaged.out)["findings"]
    assert (found["kind"], found["until_id"]) == ("gap", MISSING)
    nobody = run(server, *verify, "--master", "sc://127.0.0.1:1", **settings)
    assert nobody.code == 2, nobody
    assert "expected a server of Spark Connect that answers" in nobody.err


def test_fold_whose_module_was_edited_is_not_run_as_it_was(
    server: ConnectServer, tmp_path: Path
) -> None:
    done = run(server, "-c", EDITED, tmp_path)
    assert done.code == 0, done.err[-4_000:]
    assert "module was 'edited_fold', expected" in done.out
