"""Chains for Spark: rows as a DataFrame or a stream, a replay of orders through a state, and a
check of any frame with ids.

import orderchain.spark

orderchain.spark.register(spark)
orders = spark.read.format("orderchain").option("url", url).load("1")
"""

from chain_kernel.doors import needs_extra

with needs_extra("spark", __name__):
    from chain_verifier.dataframe.fold import Fold as Fold
    from chain_verifier.dataframe.frame import verify_frame as verify_frame
    from chain_verifier.dataframe.replay import Replayed as Replayed
    from chain_verifier.dataframe.replay import replay as replay
    from chain_verifier.dataframe.source import register as register

__all__ = ["Fold", "Replayed", "register", "replay", "verify_frame"]
