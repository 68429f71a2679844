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
from msgspec import Struct, to_builtins
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's own documents use
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, StringType, StructType

from chain_kernel.errors import InputError, SettingError
from chain_kernel.text import reason_of
from chain_verifier.dataframe.fold import Fold, Piece, Result, events_of, orders_of, run_fold
from chain_verifier.dataframe.stream import EVENT, replayed_stream
from chain_verifier.dataframe.two_folds import (
    groups_of,
    require_two,
    rows_for_two,
    run_two_folds,
)
from chain_verifier.spark.errors import spark_reason
from chain_verifier.spark.own_session import require_all_files
from chain_verifier.spark.shipping import ship

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import Column, SparkSession

_GROUP: Final = "replayed_group"
_STORED: Final = "stored_digest"
_RESULTS: Final = 10_000
"""Results per Arrow batch."""

_RESULT_COLUMNS: Final = (
    "kind STRING, group STRING, id BIGINT, rows BIGINT, digest BINARY, stored BINARY, "
    "equal_id BIGINT"
)
_DIVERGENCE: Final = (
    "group STRING, id BIGINT, equal_id BIGINT, rows BIGINT, part STRING, digest BINARY, "
    "candidate_digest BINARY, "
    "fields ARRAY<STRUCT<field: STRING, value: STRING, candidate: STRING>>, more INT, error STRING"
)
"""The fields of a `Divergence`."""


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

    @property
    def divergences(self) -> DataFrame:
        """For each group in which the candidate differs, the first order after which it does.

        Its columns are those of `chain_verifier.dataframe.two_folds.Divergence`. Empty without a
        candidate.
        """
        if "divergence" not in self.results.columns:
            return self.results.sparkSession.createDataFrame([], _DIVERGENCE)
        return self.results.where("kind = 'diverges'").select("divergence.*")


def replay(
    rows: DataFrame,
    fold: Fold[Any],
    *,
    by: Column | str | None = None,
    until: int | None = None,
    states: DataFrame | None = None,
    candidate: Fold[Any] | None = None,
    compared_rows: int | None = None,
) -> Replayed:
    """Feed `rows` (`id, pid, key, event_time_ns, payload`) to `fold`, group by group.

    `by` is the column of the group; without it the fold's own `group` decides, and without that
    all rows are one group. `until` is the last id that is replayed. `states` is what the services
    have stored: `group, id, digest`, compared with the replayed state after each such id. Those
    that are stored after this call are not; `persist()` keeps what a service overwrites.

    `candidate` is another version of the fold, with the same `group`. Both are fed in one pass.
    Where a group's states (by the `digest` of each) or outputs differ, the candidate ends, and
    `divergences` has the first order after which they do. They are compared after `compared_rows`
    orders of a group, 1 to 131,072. By default that is 16 at first, up to 127 later, 2,047 for
    states that pickle refuses, 8,192 with `columns`, and more where states are large. Only 1 finds
    a difference that is gone by then and shows in no output, and names the first of several.

    The code of this package and of the fold's modules, where it is Python alone, is sent to workers
    on other machines; a fold of a notebook goes with the query.

    A stream of rows gives the state of each group after each micro-batch that has orders of it.
    Spark keeps it, in RocksDB alone; the orders of a group in one micro-batch fit into memory.

    Raises SettingError for a fold whose `outputs` are no columns, for a session that leaves broken
    or missing files out, for `states` or a `candidate` of a stream, for a candidate that is the
    fold or has another `group`, for `compared_rows` without a candidate or out of bounds, and for a
    module that has changed since workers have it, InputError for a stored state without id or
    digest, or a digest that is neither bytes nor hex as text.
    """
    require_all_files(rows.sparkSession)
    folds = (fold,) if candidate is None else (fold, candidate)
    if candidate is not None:
        require_two(fold, candidate, compared_rows, grouped=by is None)
    elif compared_rows is not None:
        raise SettingError("compared_rows", compared_rows, "a candidate beside it")
    ship(rows.sparkSession, *dict.fromkeys(module for each in folds for module in each.modules))
    if until is not None:
        rows = rows.where(F.col("id") <= until)
    columns = dict.fromkeys(("id", *(name for each in folds for name in each.columns or EVENT)))
    rows = _grouped(rows, folds, by).select(_GROUP, *columns)
    spark = rows.sparkSession
    schema = spark.createDataFrame([], _RESULT_COLUMNS).schema
    if fold.outputs:
        schema = schema.add("output", _fields_of(spark, fold.outputs))
    if candidate is not None:
        schema = schema.add("divergence", spark.createDataFrame([], _DIVERGENCE).schema)
    if rows.isStreaming:
        if states is not None:
            raise SettingError("states", "a frame", "a replay of a frame, not of a stream")
        if candidate is not None:
            raise SettingError("candidate", "a fold", "a replay of a frame, not of a stream")
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
    work = partial(_replay, folds, compared_rows, arrow)
    return Replayed(in_order.mapInArrow(work, schema), count, last_id)


def _fields_of(spark: SparkSession, outputs: str) -> StructType:
    """Return the types of what a fold gives out. Raises SettingError."""
    try:
        return spark.createDataFrame([], outputs).schema
    except AnalysisException as error:
        expected = f"names and types, as `price BIGINT, buyer STRING` ({spark_reason(error)})"
        raise SettingError("outputs of the fold", outputs, expected) from error


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


def _grouped(rows: DataFrame, folds: tuple[Fold[Any], ...], by: Column | str | None) -> DataFrame:
    if by is not None:
        column = F.col(by) if isinstance(by, str) else by
        return rows.withColumn(_GROUP, F.coalesce(column.cast("string"), F.lit("")))
    if folds[0].group is None:
        return rows.withColumn(_GROUP, F.lit(""))
    schema = (
        f"{_GROUP} STRING, id BIGINT, pid BIGINT, key STRING, event_time_ns BIGINT, payload BINARY"
    )
    return rows.select(*EVENT).mapInArrow(partial(_add_group, folds), schema)


def _add_group(
    folds: tuple[Fold[Any], ...], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        names = pa.array(groups_of(folds, events_of(batch)), pa.string())
        yield pa.RecordBatch.from_arrays([names, *batch.columns], names=[_GROUP, *EVENT])


def _replay(
    folds: tuple[Fold[Any], ...],
    compared_rows: int | None,
    schema: pa.Schema,
    batches: Iterable[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    results = _results(folds, compared_rows, _parts(batches))
    while some := list(islice(results, _RESULTS)):
        columns: dict[str, Any] = dict(zip(Result._fields, zip(*some, strict=True), strict=True))
        columns["divergence"] = to_builtins(columns["divergence"], builtin_types=(bytes,))
        arrays = [_array(columns[field.name], field) for field in schema]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _array(values: Any, field: pa.Field) -> pa.Array:  # noqa: ANN401 - whatever a fold gives out
    """Return a column of results. Raises InputError for outputs of other types than the fold's."""
    try:
        return pa.array(values, field.type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        if field.name != "output":
            raise
        expected = f"its `outputs`, {field.type}"
        raise InputError("an output of the fold", reason_of(error), expected) from error


def _results(
    folds: tuple[Fold[Any], ...],
    compared_rows: int | None,
    parts: Iterator[tuple[str, pa.RecordBatch, bytes | None]],
) -> Iterator[Result]:
    if len(folds) == 1:
        yield from run_fold(folds[0], (_piece(folds[0], *part) for part in parts))
    else:
        one, other = folds
        rows = (rows_for_two(folds, *part) for part in parts)
        yield from run_two_folds((one, other), rows, compared_rows)


def _piece(fold: Fold[Any], group: str, rows: pa.RecordBatch, stored: bytes | None) -> Piece:
    last_id = rows.column("id")[-1].as_py()
    if stored is not None:
        return Piece(group, (), last_id, stored)
    return Piece(group, orders_of(fold, rows), last_id=last_id)


def _parts(
    batches: Iterable[pa.RecordBatch],
) -> Iterator[tuple[str, pa.RecordBatch, bytes | None]]:
    """Cut batches where the group changes, and at stored states: group, rows, stored state."""
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
        groups = names.dictionary.to_pylist()
        for first, last in pairwise(ends):
            rows = batch.slice(first, last - first)
            yield groups[codes[first]], rows, stored[first].as_py()
