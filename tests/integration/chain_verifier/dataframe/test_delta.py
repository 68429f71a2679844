"""A table of Delta, in a session that `spark-submit` started with its packages."""

import json
import os
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.integration.chain_verifier.cluster import SUBMIT, spark_environment
from tests.programs import completed

PACKAGE: Final = "io.delta:delta-spark_2.13:4.0.0"
SETTINGS: Final = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
}
PROGRAM: Final = """
import sys
from pyspark.sql import SparkSession
from chainctl.main import main

spark = SparkSession.builder.getOrCreate()
rows = "VALUES (1, 'a'), (2, 'a'), (4, 'a'), (1, 'b') AS t (seq, account)"
spark.sql(f"CREATE TABLE trades USING delta AS SELECT * FROM {rows}")
source = ("trades", "--id-column", "seq", "--key-column", "account", "--json")
code = main(["verify", "table", *source, "--findings-table", "found"])
spark.sql("INSERT INTO trades VALUES (3, 'a')")
again = main(["verify", "table", *source])
print("CODES", code, again, spark.table("found").count())
"""


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_table_of_delta_is_checked_as_it_is_now(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM, encoding="utf-8")
    settings = SETTINGS | {"spark.sql.warehouse.dir": str(tmp_path / "warehouse")}
    done = completed(
        SUBMIT,
        *("--packages", PACKAGE),
        *(word for name, value in settings.items() for word in ("--conf", f"{name}={value}")),
        program,
        cwd=tmp_path,
        env=spark_environment(os.environ) | {"PYSPARK_PYTHON": sys.executable},
    )
    lines = done.stdout.splitlines()
    assert "CODES 1 0 1" in lines, done.stdout[-2000:] + done.stderr[-2000:]
    first = next(json.loads(line) for line in lines if line.startswith("{"))
    found = [(one["key"], one["kind"], one["until_id"]) for one in first["findings"]]
    assert found == [("a", "gap", 3)]
