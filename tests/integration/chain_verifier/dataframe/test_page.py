"""The page on chains in Spark, its Python as it is printed there."""

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.integration.chain_verifier.planted_faults import CHAIN_ID, chain_of
from tests.integration.chain_verifier.stored_rows import store
from tests.pages import ROOT, blocks_of

PAGE = ROOT / "docs/spark.md"
ROWS = chain_of(random.Random(9), 25)


def test_page_reads_a_chain_and_replays_it(
    spark: SparkSession,
    database: str,
    role_dsn: Callable[[str], str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    asyncio.run(store(database, ROWS))
    names: dict[str, Any] = {"spark": spark, "url": role_dsn("auditor")}
    read, fold, check, *_ = [block.text for block in blocks_of(PAGE) if block.language == "python"]
    assert len([line for line in read.splitlines() if line]) == 3, "three lines"
    exec(read.replace('load("1")', f'load("{CHAIN_ID}")'), names)  # noqa: S102 - the page's own
    assert names["orders"].count() == len(ROWS)
    exec(fold, names)  # noqa: S102 - the page's own
    groups = {(row.key or "").partition("#")[0] for row in ROWS}
    states = {row["group"]: row["rows"] for row in names["replayed"].states.collect()}
    assert (set(states), sum(states.values())) == (groups, len(ROWS))
    assert "digest" in capsys.readouterr().out
    trades = "VALUES (1, 'a', 1), (3, 'a', 2) AS t (seq, account, offset)"
    spark.sql(f"CREATE OR REPLACE TEMP VIEW trades AS SELECT * FROM {trades}")  # noqa: S608
    exec(check, names)  # noqa: S102 - the page's own
    assert [row["kind"] for row in names["findings"].collect()] == ["gap"]
