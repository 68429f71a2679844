"""Findings in the data quality packages of others, as the page on Spark types it there.

`make versions PARTS="dqx gx"` makes an environment of each: dqx needs an older SQLAlchemy.
"""

from typing import Any
from unittest.mock import create_autospec

import pytest
from pyspark.sql import DataFrame, SparkSession

from orderchain.spark import verify_frame
from tests.pages import ROOT, blocks_of


@pytest.fixture
def trades(spark: SparkSession) -> DataFrame:
    """Sequence 3 of `a` is missing, 2 of `b` is there twice."""
    rows = [("a", 1), ("a", 2), ("a", 4), ("b", 1), ("b", 2), ("b", 2)]
    return spark.createDataFrame(rows, "account string, seq long")


def run_page(title: str, trades: DataFrame, **names: Any) -> dict[str, Any]:
    """Return the names that the page's block has set."""
    findings = verify_frame(trades, id="seq", key="account")
    (block,) = [each for each in blocks_of(ROOT / "docs/spark.md") if each.title == title]
    names |= {"trades": trades, "findings": findings}
    exec(block.text, names)  # noqa: S102 - the page's own
    return names


def test_dqx_splits_off_what_is_out_of_sequence(spark: SparkSession, trades: DataFrame) -> None:
    reason = "no databricks-labs-dqx (make versions has it)"
    module = pytest.importorskip("databricks.labs.dqx.engine", reason=reason)
    client = pytest.importorskip("databricks.sdk").WorkspaceClient
    workspace = create_autospec(client, instance=True)  # of Databricks; not asked here
    found = run_page("dqx", trades, engine=module.DQEngine(workspace, spark))
    bad = sorted((row["account"], row["seq"]) for row in found["bad"].collect())
    good = sorted((row["account"], row["seq"]) for row in found["good"].collect())
    assert bad == [("a", 2), ("b", 2), ("b", 2)]
    assert good == [("a", 1), ("a", 4), ("b", 1)]


def test_great_expectations_fails_where_there_is_a_finding(trades: DataFrame) -> None:
    reason = "no great_expectations (make versions has it)"
    pytest.importorskip("great_expectations", reason=reason)
    found = run_page("Great Expectations", trades)["result"]
    assert (found.success, found.result) == (False, {"observed_value": 2})
    whole = run_page("Great Expectations", trades.where("account = 'c'"))["result"]
    assert whole.success
