"""Sums of keyed hashes, in parts and in all."""

from typing import Any

import pytest
from pyspark.errors import ArithmeticException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from chain_verifier.spark.sums import KEY, PART, fingerprint_of, totals, with_key


def test_key_is_no_part_of_the_plan_so_that_its_code_is_compiled_once(
    spark: SparkSession,
) -> None:
    key = 2**62 + 12_345
    frame: Any = with_key(spark.range(3), key).agg(F.sum(F.xxhash64(KEY, "id") % 7))
    plan = frame._jdf.queryExecution().executedPlan().toString()
    assert KEY in plan
    assert str(key) not in plan


def test_parts_whose_sum_overflows_have_a_total(spark: SparkSession) -> None:
    planted = {"rows": 2**28, "surplus_low": -(2**60), "print_low": 2**60, "print_high": 2**60}
    of_parts = {name: F.lit(value) for name, value in planted.items()}
    parts = spark.range(9).withColumnRenamed("id", PART).withColumns(of_parts)
    for name in ("surplus_low", "print_low", "print_high"):
        with pytest.raises(ArithmeticException, match="OVERFLOW"):
            parts.agg(F.sum(name)).collect()
    (found,) = totals(parts, ()).collect()
    assert (found["rows"], found["surplus_low"]) == (9 * 2**28, -9 * 2**60)
    assert fingerprint_of(found) == 9 * 2**60 + (9 * 2**60 << 32)
