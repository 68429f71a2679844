"""A replay on Spark: orders in their order, per group, through a fold.

The rows of a group meet in one task, sorted by id, and stream through it: a group may be larger
than memory. Groups are spread over the tasks.
"""

from __future__ import annotations

from functools import partial
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
from msgspec import Struct
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's own documents use
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, StringType, StructType

from chain_kernel.errors import InputError, SettingError
from chain_kernel.model import Event
from chain_verifier.dataframe.fold import Fold, Piece, run_fold
from chain_verifier.dataframe.stream import EVENT, replayed_stream
from chain_verifier.spark.own_session import require_all_files
from chain_verifier.spark.shipping import ship

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import Column

_GROUP: Final = "replayed_group"
_STORED: Final = "stored_digest"
_RESULTS: Final = 10_000
"""Results per Arrow batch."""

_RESULT_COLUMNS: Final = (
    "kind STRING, group STRING, id BIGINT, rows BIGINT, digest BINARY, stored BINARY, "
    "equal_id BIGINT"
)


class Replayed(Struct, frozen=True):
    """Results of a replay. Each use of a frame replays again: `results.persist()` keeps it."""

    results: DataFrame
    """All results as they come; the frames below are parts of it."""
    compared: int = 0
    """Number of stored states that it is compared with."""
    compared_id: int = 0
    """After which id the last of them was stored."""

    @property
    def states(self) -> DataFrame:
        """The state of each group after its last row: `group, id, rows, digest`."""
        return self.results.where("kind = 'state'").select("group", "id", "rows", "digest")

    @property
    def outputs(self) -> DataFrame:
        """Outputs of the fold, with the last row of the piece that gave each: `group, id, ...`.

        An output of one of these names takes its place.
        """
        given = self.results.schema["output"].dataType
        names = given.fieldNames() if isinstance(given, StructType) else []
        own = [name for name in ("group", "id") if name not in map(str.lower, names)]
        return self.results.where("kind = 'output'").select(*own, "output.*")

    @property
    def differences(self) -> DataFrame:
        """For each group whose stored states differ, the first that does.

        `group, id, equal_id, rows, digest, stored`: the service went wrong after the row
        `equal_id`, where its state was right, and not after `id`.
        """
        columns = ("group", "id", "equal_id", "rows", "digest", "stored")
        return self.results.where("kind = 'differs'").select(*columns)


def replay(
    rows: DataFrame,
    fold: Fold[Any],
    *,
    by: Column | str | None = None,
    until: int | None = None,
    states: DataFrame | None = None,
) -> Replayed:
    """Feed `rows` (`id, pid, key, event_time_ns, payload`) to `fold`, group by group.

    `by` is the column of the group; without it the fold's own `group` decides, and without that
    all rows are one group. `until` is the last id that is replayed. `states` is what the services
    have stored: `group, id, digest`, compared with the replayed state after each such id. Those
    that are stored after this call are not; `persist()` keeps what a service overwrites.

    The code of this package and of the fold's modules, where it is Python alone, is sent to workers
    on other machines; a fold of a notebook goes with the query.

    A stream of rows gives the state of each group after each micro-batch that has orders of it.
    Spark keeps it, in RocksDB alone; the orders of a group in one micro-batch fit into memory.

    Raises AnalysisException for a fold whose outputs are no columns, SettingError for a session
    that leaves broken or missing files out, for `states` of a stream and for a module that has
    changed since workers have it, InputError for a stored state without id or digest, or a digest
    that is neither bytes nor hex as text.
    """
    require_all_files(rows.sparkSession)
    ship(rows.sparkSession, *fold.modules)
    if until is not None:
        rows = rows.where(F.col("id") <= until)
    columns = dict.fromkeys(("id", *(fold.columns or EVENT)))
    rows = _grouped(rows, fold, by).select(_GROUP, *columns)
    spark = rows.sparkSession
    schema = spark.createDataFrame([], _RESULT_COLUMNS).schema
    if fold.outputs:
        schema = schema.add("output", spark.createDataFrame([], fold.outputs).schema)
    if rows.isStreaming:
        if states is not None:
            raise SettingError("states", "a frame", "a replay of a frame, not of a stream")
        return Replayed(replayed_stream(rows, fold, _GROUP, schema))
    rows = rows.withColumn(_STORED, F.lit(None).cast("binary"))
    count = last_id = 0
    if states is not None:
        require_all_files(states.sparkSession)
        # Without ANSI, a number that does not fit would be cast to another one.
        states = _with_bytes(states).withColumn("id", F.col("id").try_cast("bigint"))
        count, last_id = _seen(states, until)
        # States that are stored meanwhile may be of rows after the heads, which are read later.
        rows = rows.unionByName(
            states.where(F.col("id") <= last_id).select(
                F.coalesce(F.col("group").cast("string"), F.lit("")).alias(_GROUP),
                "id",
                F.col("digest").alias(_STORED),
            ),
            allowMissingColumns=True,
        )
    # A stored state comes after the row of its id.
    in_order = rows.repartition(_GROUP).sortWithinPartitions(
        _GROUP, "id", F.col(_STORED).isNotNull()
    )
    # The types go to the workers, which have no session to ask.
    arrow = to_arrow_schema(schema)
    return Replayed(in_order.mapInArrow(partial(_replay, fold, arrow), schema), count, last_id)


_EXPECTED: Final = {"id": "a bigint in each row", "digest": "bytes, or hex as text, in each row"}


def _with_bytes(states: DataFrame) -> DataFrame:
    """Return `states` with digests as bytes: text is hex. Raises InputError for another type."""
    kind = states.schema["digest"].dataType
    if isinstance(kind, StringType):
        return states.withColumn("digest", F.unhex("digest"))
    if not isinstance(kind, BinaryType):
        raise InputError("column digest of the states", kind.simpleString(), _EXPECTED["digest"])
    return states


def _seen(states: DataFrame, until: int | None) -> tuple[int, int]:
    """Return how many states are stored, and after which id the last one. Raises InputError."""
    is_asked = F.lit(True) if until is None else F.col("id") <= until
    (seen,) = states.agg(
        F.count_if(is_asked).alias("count"),
        F.max(F.when(is_asked, F.col("id"))).alias("last_id"),
        *(F.count_if(F.col(name).isNull()).alias(name) for name in _EXPECTED),
    ).collect()
    for name in _EXPECTED:
        if seen[name]:
            raise InputError(f"column {name} of the states", "NULL", _EXPECTED[name])
    return seen["count"], seen["last_id"] or 0


def _grouped(rows: DataFrame, fold: Fold[Any], by: Column | str | None) -> DataFrame:
    if by is not None:
        column = F.col(by) if isinstance(by, str) else by
        return rows.withColumn(_GROUP, F.coalesce(column.cast("string"), F.lit("")))
    if fold.group is None:
        return rows.withColumn(_GROUP, F.lit(""))
    schema = (
        f"{_GROUP} STRING, id BIGINT, pid BIGINT, key STRING, event_time_ns BIGINT, payload BINARY"
    )
    return rows.select(*EVENT).mapInArrow(partial(_add_group, fold), schema)


def _add_group(fold: Fold[Any], batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    group: Any = fold.group
    for batch in batches:
        orders = fold.upcast_events(_events(batch))
        names = pa.array(list(map(group, orders)), pa.string())
        yield pa.RecordBatch.from_arrays([names, *batch.columns], names=[_GROUP, *EVENT])


def _replay(
    fold: Fold[Any], schema: pa.Schema, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    results = run_fold(fold, _pieces(batches, fold.columns))
    while some := list(islice(results, _RESULTS)):
        columns = zip(*some, strict=True)
        arrays = [
            pa.array(column, kind) for column, kind in zip(columns, schema.types, strict=False)
        ]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _pieces(batches: Iterable[pa.RecordBatch], columns: tuple[str, ...]) -> Iterator[Piece]:
    """Cut batches where the group changes, and at stored states."""
    for batch in batches:
        if not batch.num_rows:
            continue
        names = batch.column(_GROUP).dictionary_encode()
        codes = np.asarray(names.indices)
        stored = batch.column(_STORED)
        at_stored = np.flatnonzero(np.asarray(stored.is_valid()))
        changes = np.flatnonzero(np.diff(codes)) + 1
        cuts = sorted({0, *changes.tolist(), *at_stored.tolist(), *(at_stored + 1).tolist()})
        ends = [*(cut for cut in cuts if cut < batch.num_rows), batch.num_rows]
        is_stored = set(at_stored.tolist())
        groups = names.dictionary.to_pylist()
        for first, last in pairwise(ends):
            group = groups[codes[first]]
            if first in is_stored:
                place = batch.column("id")[first].as_py()
                yield Piece(group, (), place, stored[first].as_py())
            else:
                rows = batch.slice(first, last - first)
                last_id = rows.column("id")[-1].as_py() if columns else 0
                yield Piece(
                    group,
                    rows.select(columns) if columns else _events(rows),
                    last_id=last_id,
                )


def _events(batch: pa.RecordBatch) -> list[Event]:
    return list(map(Event, *(batch.column(name).to_pylist() for name in EVENT)))
