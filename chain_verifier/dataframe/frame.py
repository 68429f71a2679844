"""Any frame with ids: which rows it lacks, repeats or misplaces, per key.

With `pid`, each row names the one before it, and the rows of a key must form one path, as those
of a chain. Without `pid`, ids count without gaps. Works in every session, also over Connect.
"""

from __future__ import annotations

import secrets
from functools import reduce
from typing import TYPE_CHECKING, Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's own documents use
from pyspark.sql.types import DecimalType, IntegralType

from chain_kernel.errors import InputError, SettingError, SourceBroken
from chain_verifier.checks.buckets import Horizon
from chain_verifier.config import FINDINGS_MAX, LEAF_BITS, bucket_bits
from chain_verifier.findings import Finding, Kind
from chain_verifier.sources.content import EVENT_TYPES
from chain_verifier.spark.own_session import require_all_files
from chain_verifier.spark.source_check import examine, unsound
from chain_verifier.spark.sums import summed
from chain_verifier.spark.table import HAS_NULL, MALFORMED, any_null
from chain_verifier.verification import KEY_BITS, ScanPlan

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import Column, Observation, Row

COLUMNS: Final = {
    "key": "string",
    "kind": "string",
    "id": "bigint",
    "pid": "bigint",
    "ids": "array<bigint>",
    "after_id": "bigint",
    "until_id": "bigint",
    "count": "bigint",
    "columns": "array<string>",
}
"""The columns of findings, with their types in SQL; `docs/verification.md` says what they mean."""

KINDS: Final = (
    Kind.GAP, Kind.FORK, Kind.SECOND_ROOT, Kind.ORPHAN, Kind.DUPLICATE, Kind.PID_NOT_BELOW_ID,
    Kind.NULL, Kind.OUT_OF_ORDER, Kind.DAMAGED_RANGE,
)  # fmt: skip

_SCHEMA: Final = ", ".join(f"`{name}` {kind}" for name, kind in COLUMNS.items())
_ORDER: Final = "row_order"

_KEYS_MAX: Final = 100
"""Damaged keys whose rows are searched for the faults; of further ones only the range is named."""

_PART_BITS: Final = 20
"""Ids are summed, and neighbours looked for, among 2^20 at a time: an order by id of all would be
one task."""

_PARTS_MAX: Final = 1_000
"""Wrong parts that the driver holds; of more, the sums are taken once more."""

_PART: Final = "part"
_LACKS: Final = "lacks"
_PARTS: Final = (
    "key STRING, part BIGINT, after_id BIGINT, first_id BIGINT, is_whole BOOLEAN, lacks BIGINT"
)
_LOWEST: Final = -(2**63)


def verify_frame(
    frame: DataFrame,
    *,
    id: str = "id",  # noqa: A002 - the column's usual name
    pid: str | None = None,
    key: str | None = None,
    order: str | None = None,
    start: int | None = 0,
    head: int | DataFrame | None = None,
    observation: Observation | None = None,
) -> DataFrame:
    """Return what is wrong with the rows of `frame`: one row per finding, with `COLUMNS`.

    `id`, `pid`, `key` and `order` are columns. Each value of `key` has ids of its own. `order` is
    where a row is (an offset, a time): rows that come after a higher id are `out_of_order`. `head`
    is the last id that there has to be, or with `key` a frame of `key, head`, a row for each: what
    is missing before it, and a key that has no row, is a `gap`; rows after it are none. `start` is
    the id before the first row. It counts with `pid` or `head`: else ids may begin anywhere, as
    with None. `observation` receives the number of `findings`, and of each
    kind, once the result is used.

    This reads the frame, and its use what is wrong once more. Raises InputError for
    a column that is missing, or whose ids are no whole numbers; SettingError for a session that
    leaves broken or missing files out; SourceBroken for a frame that changes between two looks.
    """
    require_all_files(frame.sparkSession)
    rows = _rows(frame, {"id": id, "pid": pid, "key": key, _ORDER: order})
    places = {"id": id, "pid": pid, _ORDER: order}
    sound = rows.where(~F.col(HAS_NULL))
    if pid is None:
        parts = [*_uncounted(rows, places)]
    else:
        parts = [_nulls(rows, places), *_broken_chains(sound, start)]
    if head is not None:
        parts.append(_lost_ends(sound, _truth(frame, key, head), start, is_counted=pid is None))
    if order is not None:
        parts.append(_late(sound.where(F.col(_ORDER).isNotNull())))
    found = reduce(lambda one, other: one.unionByName(other), parts)
    if observation is None:
        return found
    counts = [F.count_if(F.col("kind") == kind.value).alias(kind.value) for kind in KINDS]
    return found.observe(observation, F.count(F.lit(1)).alias("findings"), *counts)


def _rows(frame: DataFrame, names: dict[str, str | None]) -> DataFrame:
    types = {field.name: field.dataType for field in frame.schema.fields}
    for role, name in names.items():
        if name is None:
            continue
        if name not in types:
            raise InputError(f"column {name}", None, f"one of {', '.join(types)}")
        kind = types[name]
        is_whole = isinstance(kind, IntegralType) or (
            isinstance(kind, DecimalType) and not kind.scale
        )
        if role in ("id", "pid") and not is_whole:
            raise InputError(f"column {name}", kind.simpleString(), "a type of whole numbers")
    # Without ANSI, a number that does not fit would be cast to another one.
    columns = {
        "key": column_of(names["key"]).cast("string"),
        "id": column_of(names["id"]).try_cast("bigint"),
        "pid": column_of(names["pid"]).try_cast("bigint"),
        _ORDER: column_of(names[_ORDER]),
    }
    rows = frame.select(*(column.alias(name) for name, column in columns.items()))
    # A row without a place still links its neighbours.
    return rows.withColumn(HAS_NULL, any_null(("id", "pid") if names["pid"] else ("id",)))


def column_of(name: str | None) -> Column:
    """Return the column of a name, which may have dots; NULL without a name."""
    return F.lit(None) if name is None else F.col(f"`{name.replace('`', '``')}`")


def _findings(rows: DataFrame, kind: Kind | None, **fields: Column) -> DataFrame:
    """Return `rows` as findings; columns that they do not have are NULL."""
    own = {"kind": F.lit(kind.value)} if kind else {}
    known = own | {name: F.col(name) for name in COLUMNS if name in rows.columns} | fields
    return rows.select(
        *(known.get(name, F.lit(None)).cast(kind).alias(name) for name, kind in COLUMNS.items())
    )


def _nulls(rows: DataFrame, names: Mapping[str, str | None]) -> DataFrame:
    columns = [F.when(F.col(role).isNull(), F.lit(name)) for role, name in names.items() if name]
    found = rows.withColumn("columns", F.array_compact(F.array(*columns)))
    return _findings(found.where(F.size("columns") > 0), Kind.NULL)


# -- ids that count --------------------------------------------------------------------------------


def _uncounted(rows: DataFrame, names: Mapping[str, str | None]) -> Iterator[DataFrame]:
    """Yield the findings of parts whose ids do not count: the sums of each part show which.

    A row counts as an edge from the id before its own: those of a part are one path, or not.
    """
    placed = rows.withColumns(
        {
            "pid": F.try_subtract("id", F.lit(1)),
            _PART: F.shiftright("id", _PART_BITS),
            _LACKS: any_null(tuple(role for role, name in names.items() if name)),
        }
    )
    key = secrets.randbits(KEY_BITS)
    sums = summed(placed, key, ("key", _PART), counts={_LACKS: F.col(_LACKS)})
    before = F.lag("last_id").over(Window.partitionBy("key").orderBy(_PART))
    ends = sums.withColumn("after_id", before).withColumnRenamed("is_balanced", "is_whole")
    is_next = F.coalesce(~_is_gap("first_id"), F.lit(True))
    wrong = ends.where(~(F.col("is_whole") & is_next & (F.col(_LACKS) == 0)))
    wrong = wrong.select("key", _PART, "after_id", "first_id", "is_whole", _LACKS)
    found = wrong.limit(_PARTS_MAX + 1).collect()
    is_few = len(found) <= _PARTS_MAX
    if is_few:
        wrong = rows.sparkSession.createDataFrame([tuple(each) for each in found], _PARTS)
    yield _missing(wrong.select("key", "after_id", F.col("first_id").alias("id")))
    if not is_few or any(each[_LACKS] for each in found):
        yield _nulls(rows, names)
    if all(each["is_whole"] for each in found):
        return
    broken = wrong.where("NOT is_whole").select(F.col("key").alias("broken_key"), F.col(_PART))
    near = placed.where(~F.col(HAS_NULL)).join(
        F.broadcast(broken) if is_few else broken,
        F.col("key").eqNullSafe(F.col("broken_key")) & (placed[_PART] == broken[_PART]),
        "left_semi",
    )
    within = Window.partitionBy("key", F.shiftright("id", _PART_BITS)).orderBy("id")
    once = near.select("key", "id").distinct().withColumn("after_id", F.lag("id").over(within))
    counted = near.groupBy("key", "id").agg(F.count(F.lit(1)).alias("count"))
    faults = [_missing(once), _findings(counted.where(F.col("count") > 1), Kind.DUPLICATE)]
    # Before the lowest id there is none that a number could name: its sums never fit.
    is_lowest = any(each["first_id"] == _LOWEST for each in found)
    if is_few and not is_lowest and all(fault.isEmpty() for fault in faults):
        raise SourceBroken("the frame", "it changed while it was being read")
    yield from faults


def _is_gap(row_id: str) -> Column:
    return F.col("after_id") < F.try_subtract(row_id, F.lit(1))


def _missing(pairs: DataFrame) -> DataFrame:
    until = F.col("id") - 1
    return _findings(
        pairs.where(_is_gap("id")),
        Kind.GAP,
        id=F.lit(None),
        until_id=until,
        count=F.try_subtract(until, F.col("after_id")),
    )


def _truth(frame: DataFrame, key: str | None, head: int | DataFrame) -> DataFrame:
    """Return the last id that there has to be, by key."""
    if isinstance(head, DataFrame) != (key is not None):
        expected = "a number, or with `key` a frame of key and head"
        raise SettingError("head", type(head).__name__, expected)
    if not isinstance(head, DataFrame):
        return frame.sparkSession.createDataFrame([(None, head)], "true_key STRING, head BIGINT")
    for name in ("key", "head"):
        if name not in head.columns:
            raise InputError(f"column {name}", None, f"one of {', '.join(head.columns)}")
    return head.select(F.col("key").cast("string").alias("true_key"), F.col("head").cast("bigint"))


def _lost_ends(
    rows: DataFrame, truth: DataFrame, start: int | None, *, is_counted: bool
) -> DataFrame:
    """Return what is missing after the last row of each key, and of ids that count before the
    first; with `pid`, the first row has shown that.
    """
    ends = rows.groupBy("key").agg(F.min("id").alias("first_id"), F.max("id").alias("last_id"))
    known = truth.join(ends, F.col("true_key").eqNullSafe(F.col("key")), "left")
    known = known.withColumns(
        {"key": F.col("true_key"), "after_id": F.coalesce("last_id", F.lit(start))}
    )
    is_lost = F.col("after_id").isNull() | (F.col("after_id") < F.col("head"))
    lost = {"id": F.lit(None), "until_id": F.col("head")}
    if is_counted:
        lost["count"] = F.try_subtract("head", "after_id")
    found = _findings(known.where(is_lost), Kind.GAP, **lost)
    if not is_counted or start is None:
        return found
    before = known.withColumns({"after_id": F.lit(start), "id": F.least("first_id", "head")})
    return found.unionByName(_missing(before.where(F.col("first_id").isNotNull())))


def _late(rows: DataFrame) -> DataFrame:
    """Return the rows that come after a higher id, grouped by that id.

    A row that occurs twice is a duplicate; only its first occurrence counts here.
    """
    nth = F.row_number().over(Window.partitionBy("key", "id").orderBy(_ORDER))
    before = (
        Window.partitionBy("key").orderBy(_ORDER, "id").rowsBetween(Window.unboundedPreceding, -1)
    )
    placed = rows.withColumn("nth", nth).where("nth = 1")
    late = placed.withColumn("after_id", F.max("id").over(before)).where("id < after_id")
    groups = late.groupBy("key", "after_id").agg(
        F.min("id").alias("id"), F.max("id").alias("until_id"), F.count(F.lit(1)).alias("count")
    )
    return _findings(groups, Kind.OUT_OF_ORDER)


# -- rows that name the one before -----------------------------------------------------------------


class _KeyTable:
    """The rows of one key."""

    has_positions = False
    may_lack = ()

    def __init__(self, name: str, rows: DataFrame, span: int) -> None:
        self.name = name
        self.span = span
        content = {name: F.lit(None).cast(kind) for name, kind in EVENT_TYPES.items()}
        known = {"id": F.col("id"), "pid": F.col("pid"), "chain_id": F.lit(_CHAIN)}
        marks = {HAS_NULL: F.lit(False), MALFORMED: F.lit(False)}
        columns = content | known | marks
        self.rows = rows.select(*(column.alias(name) for name, column in columns.items()))


_CHAIN: Final = 0


def _broken_chains(rows: DataFrame, start: int | None) -> Iterator[DataFrame]:
    """Yield the findings of keys whose rows are not one path: the sums of each key show which."""
    paths = rows.withColumn(MALFORMED, F.lit(False))
    sums = summed(paths, secrets.randbits(KEY_BITS), ("key",), counts=unsound())
    begins = F.lit(True) if start is None else F.col("pid") == start
    is_whole = F.col("is_balanced") & (F.col("unsound") == 0) & begins
    broken = sums.where(~is_whole).select("key", "pid", "first_id", "last_id")
    found = broken.orderBy("key").limit(_KEYS_MAX).collect()
    faults = []
    for each in found:
        for fault in _faults(rows, each, each["pid"] if start is None else start):
            values = {name: getattr(fault, name) for name in COLUMNS}
            known = {name: None if value in ((), "") else value for name, value in values.items()}
            own = {"kind": fault.kind.value, "ids": list(fault.ids) or None, "key": each["key"]}
            faults.append(tuple((known | own)[name] for name in COLUMNS))
    yield rows.sparkSession.createDataFrame(faults, _SCHEMA)
    if len(found) == _KEYS_MAX:
        further = broken.where(F.col("key") > found[-1]["key"])
        ends = {"id": F.col("first_id"), "until_id": F.col("last_id"), "pid": F.lit(None)}
        yield _findings(further, Kind.DAMAGED_RANGE, **ends)


def _faults(rows: DataFrame, of: Row, start: int) -> Sequence[Finding]:
    span = of["last_id"] - of["first_id"] + 1
    own = rows.where(F.col("key").eqNullSafe(F.lit(of["key"])))
    table = _KeyTable(str(of["key"] or "the frame"), own, span)
    how = ScanPlan(
        key=secrets.randbits(KEY_BITS),
        bits=bucket_bits(span),
        leaf_bits=LEAF_BITS,
        fingerprints=False,
    )
    horizon = Horizon(chain_id=_CHAIN, start=start, head=None)
    wholes = examine(table, horizon, how).findings.wholes
    found = [fault for whole in wholes if isinstance(whole, tuple) for fault in whole]
    found += _before(table.name, own, start)
    if not found:
        raise SourceBroken(table.name, "it changed while it was being read")
    return found


def _before(name: str, rows: DataFrame, start: int) -> Iterator[Finding]:
    """Yield the rows up to `start`, which a scan leaves out; from 0, it takes all rows."""
    if start == 0:
        return
    before = rows.where(F.col("id") <= start).select("id", "pid").orderBy("id", "pid")
    for row_id, pid in before.limit(FINDINGS_MAX).collect():
        kind = Kind.ORPHAN if pid < row_id else Kind.PID_NOT_BELOW_ID
        yield Finding(kind=kind, source=name, id=row_id, pid=pid)
