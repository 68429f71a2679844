"""What both modes say of the same sources: they must agree word for word."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from chain_verifier.local.verify import verify_locally
from chain_verifier.spark.verify import verify

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from chain_verifier.config import VerifyRequest
    from chain_verifier.report import Report


def said(report: Report) -> dict[str, Any]:
    """What a report says, but for how long it took; findings in any order."""
    told = report.to_dict()
    for one in [told, *told["sources"], *told["comparisons"]]:
        one.pop("seconds")
    told.pop("spark_start_seconds")
    told["findings"] = sorted(map(str, told["findings"]))
    return told


def verified_by_both(request: VerifyRequest, spark: SparkSession) -> Report:
    """Verify by both modes, and return the report once they agree."""
    by_spark = verify(request, spark)
    assert said(verify_locally(request)) == said(by_spark)
    return by_spark
