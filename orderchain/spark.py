"""Chains for Spark: rows as a DataFrame or a stream, and a replay of orders through a state.

import orderchain.spark

orderchain.spark.register(spark)
orders = spark.read.format("orderchain").option("url", url).load("1")
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from chain_verifier.dataframe.fold import Fold
from chain_verifier.dataframe.replay import Replayed, replay
from chain_verifier.dataframe.source import ChainSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Fold", "Replayed", "register", "replay"]


def register(spark: SparkSession) -> None:
    """Make the format `orderchain` known to `spark`, also to one over Connect."""
    spark.dataSource.register(ChainSource)
