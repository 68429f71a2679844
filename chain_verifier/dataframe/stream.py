"""A replay of a stream: Spark keeps the state of each group between its micro-batches.

The rows of a micro-batch come after those of the one before it. So each group's orders are sorted
within one, and applied to the state that the last one has left. Exactly once, from the checkpoint.
"""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from chain_kernel.model import Event
from chain_verifier.dataframe.fold import Piece, go_on
from chain_verifier.spark.shipping import on_driver

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from chain_verifier.dataframe.fold import Fold

EVENT = ("id", "pid", "key", "event_time_ns", "payload")


def replayed_stream(rows: DataFrame, fold: Fold[Any], group: str, schema: StructType) -> DataFrame:
    """Return the results of a stream of rows with a column `group`: states as they become.

    Spark keeps states of this kind in RocksDB alone.
    """
    with on_driver(rows.sparkSession, *fold.modules):
        return rows.groupBy(group).transformWithStateInPandas(
            statefulProcessor=_Groups(fold, schema.names),
            outputStructType=schema,
            outputMode="Append",
            timeMode="None",
        )


class _Groups(StatefulProcessor):
    """Applies the orders of a micro-batch, group by group."""

    def __init__(self, fold: Fold[Any], names: list[str]) -> None:
        self._fold = fold
        self._names = names
        self._kept: Any = None

    def init(self, handle: Any) -> None:  # noqa: ANN401 - PySpark's
        """Open the state of a group."""
        self._kept = handle.getValueState("group", "state BINARY")

    def handleInputRows(  # noqa: N802 - PySpark's name
        self,
        key: Any,  # noqa: ANN401 - a tuple
        rows: Iterator[pd.DataFrame],
        timerValues: Any,  # noqa: ANN401, N803 - PySpark's
    ) -> Iterator[pd.DataFrame]:
        """Yield what the orders give, and the state after them."""
        del timerValues
        frame = pd.concat(rows).sort_values("id")
        orders: Any
        if self._fold.columns:
            columns = list(self._fold.columns)
            orders = pa.RecordBatch.from_pandas(frame[columns], preserve_index=False)
        else:
            orders = list(map(Event, *(frame[name].tolist() for name in EVENT)))
        piece = Piece(key[0], orders, last_id=int(frame["id"].iloc[-1]))
        before = pickle.loads(self._kept.get()[0]) if self._kept.exists() else None  # noqa: S301
        results, after = go_on(self._fold, piece, before)
        self._kept.update((pickle.dumps(after),))
        # The last column is there only if the fold gives something out.
        given = [each[: len(self._names)] for each in results]
        yield pd.DataFrame(given, columns=self._names, dtype=object)

    def close(self) -> None:
        """Do nothing: Spark owns the state."""
