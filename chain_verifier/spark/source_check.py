"""Checks one source against the theorem, and names what is wrong where it does not hold.

The first look at a source checks whether its rows are one path as a whole: one sum over all rows,
without buckets. Most chains are one path, and then there is nothing to locate. Else parts of the
source are read again: the rows of buckets, the rows that no bucket can hold, and the rows of a file
that come after a row that follows them in the chain.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812

from chain_verifier.checks.buckets import Link, is_one_path, row_count, whole_path
from chain_verifier.findings import Findings, Kind, joined_findings
from chain_verifier.sources.content import CONTENT
from chain_verifier.spark.database import EVERY_ID, DatabaseTable, rows_of
from chain_verifier.spark.errors import as_broken
from chain_verifier.spark.files import JournalTable
from chain_verifier.spark.finding_frame import finding_frame, sampled, sampled_rows
from chain_verifier.spark.scan import (
    BEYOND_ROWS,
    FOREIGN_ROWS,
    MALFORMED_ROWS,
    UNPLACED_ROWS,
    Scan,
    class_of,
    is_one_ordered_path,
    looked_at,
    placed,
    scan,
)
from chain_verifier.spark.sums import summed
from chain_verifier.spark.table import BLOCK, HAS_NULL, MALFORMED, POSITION
from chain_verifier.verification import ScannedSource, link_faults, require_own_rows

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import Column, DataFrame, Row

    from chain_verifier.checks.buckets import Bucket, Horizon
    from chain_verifier.spark.table import Table
    from chain_verifier.verification import ScanPlan


def whole_chain(paths: DataFrame, horizon: Horizon, key: int) -> Bucket | None:
    """Return all `paths` as one bucket if they are one path from start to head, and nothing else.

    None means that this is not proven: the rows must be looked at in buckets. Without a row, the
    result is None, too.
    """
    counts = unsound(F.col("chain_id") == horizon.chain_id)
    return _path_of(summed(looked_at(paths, horizon), key, counts=counts).collect()[0], horizon)


def whole_chains(
    paths: DataFrame, horizons: Mapping[int, Horizon], key: int
) -> dict[int, Bucket | None]:
    """Return the same for each chain of which there are `paths`, by one grouped look."""
    found = summed(paths, key, ["chain_id"], counts=unsound()).collect()
    return {row["chain_id"]: _path_of(row, horizons[row["chain_id"]]) for row in found}


def unsound(is_of_chain: Column | None = None) -> dict[str, Column]:
    """Return what counts the rows, or pages, one of which fails a whole.

    A NULL counts as not sound, so that no NULL can hide from the sums.
    """
    is_sound = ~F.col(MALFORMED) & ~F.col(HAS_NULL) & (F.col("pid") < F.col("id"))
    is_own = is_sound if is_of_chain is None else is_sound & is_of_chain
    return {"unsound": ~F.coalesce(is_own, F.lit(False))}


def _path_of(found: Row, horizon: Horizon) -> Bucket | None:
    if not found["rows"] or found["unsound"] or not found["is_balanced"]:
        return None
    bucket = whole_path(found["rows"], found["pid"], found["first_id"], found["last_id"])
    return bucket if is_one_path([bucket], horizon) else None


def examine(table: Table, horizon: Horizon, how: ScanPlan) -> ScannedSource:
    """Scan one source, and locate its faults if there are any.

    Raises InputError for content that belongs to no chain, SourceBroken when the source cannot be
    read to its end or changes between two looks.
    """
    with as_broken(table.name):
        # Positions and fingerprints are kept per bucket in any case.
        if not table.has_positions and not how.fingerprints:
            paths = table.paths if isinstance(table, DatabaseTable) else table.rows
            whole = whole_chain(paths, horizon, how.key)
            if whole is not None:
                return ScannedSource.whole(whole)
        return _examine_buckets(table, horizon, how)


def _examine_buckets(table: Table, horizon: Horizon, how: ScanPlan) -> ScannedSource:
    found = scan(
        rows_of(table, CONTENT if how.fingerprints else ()),
        horizon,
        how.bits,
        how.key,
        positions=table.has_positions,
        fingerprints=how.fingerprints,
    )
    if found.outside.get(MALFORMED_ROWS) and isinstance(table, JournalTable):
        table.refuse_line()
    own = row_count(found.buckets) + found.outside.get(BEYOND_ROWS, 0)
    foreign, unplaced = (found.outside.get(one, 0) for one in (FOREIGN_ROWS, UNPLACED_ROWS))
    require_own_rows(table.name, horizon.chain_id, own, foreign + unplaced)
    nulls = sum(bucket.nulls for bucket in found.buckets) + unplaced
    return ScannedSource(
        buckets=found.buckets,
        findings=joined_findings(
            [
                _faults(table, horizon, how, found),
                rows_with_null(table.name, table.rows, horizon) if nulls else Findings(),
                foreign_rows(table.name, table.rows, horizon) if foreign else Findings(),
            ]
        ),
        notes=table.notes if isinstance(table, JournalTable) else (),
        rows_beyond=found.outside.get(BEYOND_ROWS, 0),
        beyond_id=found.beyond_id,
    )


def _faults(table: Table, horizon: Horizon, how: ScanPlan, found: Scan) -> Findings:
    if not table.has_positions:
        return _link_faults(table, horizon, how, found.buckets)
    if is_one_ordered_path(found.stretches, horizon):
        return Findings()
    # It is a wrong set of rows or a wrong order: to find out which, each is checked alone.
    by_id = scan(table.rows, horizon, how.bits, how.key, positions=False, fingerprints=False)
    faults = _link_faults(table, horizon, how, by_id.buckets)
    return joined_findings([faults, rows_out_of_order(table.name, table.rows, horizon)])


def _link_faults(table: Table, horizon: Horizon, how: ScanPlan, buckets: list[Bucket]) -> Findings:
    opener = RowOpener(table, horizon, how.key)
    return link_faults(table, buckets, horizon, opener, how.leaf_bits)


_ANY_BITS: Final = 1


class RowOpener:
    """The `Opener` of `chain_verifier.checks.buckets` on a Spark frame."""

    def __init__(self, table: Table, horizon: Horizon, key: int) -> None:
        self._table = table
        self._horizon = horizon
        self._key = key

    def split(self, buckets: Sequence[Bucket], bits: int) -> list[Bucket]:
        """Return the rows of `buckets`, all of one width, in buckets of 2^bits ids."""
        rows = in_buckets(self._table, self._horizon, buckets)
        return scan(
            rows, self._horizon, bits, self._key, positions=False, fingerprints=False
        ).buckets

    def links(self, buckets: Sequence[Bucket]) -> list[Link]:
        """Return every row of `buckets`."""
        rows = in_buckets(self._table, self._horizon, buckets).select("id", "pid").collect()
        return [Link(row["pid"], row["id"], row["id"]) for row in rows]


def in_buckets(
    table: Table, horizon: Horizon, buckets: Sequence[Bucket], names: Sequence[str] = ()
) -> DataFrame:
    """Return the rows whose ids fall into one of `buckets`, with ids, pids and `names`.

    A source can use the range over all of them; Spark then selects the rows of the single buckets.
    """
    ids = range(
        min(bucket.lower_id for bucket in buckets), max(bucket.upper_id for bucket in buckets)
    )
    chosen = placed(rows_of(table, names, ids), horizon).where(F.col("id") >= ids.start)
    if ids.stop < EVERY_ID.stop:
        chosen = chosen.where(F.col("id") < ids.stop)
    return chosen.where(_is_in(buckets))


def _is_in(buckets: Sequence[Bucket]) -> Column:
    widths = sorted({bucket.bits for bucket in buckets})
    found = F.lit(False)
    for bits in widths:
        numbers = [bucket.number for bucket in buckets if bucket.bits == bits]
        found = found | F.shiftright("id", bits).isin(numbers)
    return found


def rows_with_null(source: str, rows: DataFrame, horizon: Horizon) -> Findings:
    """Return the rows that have NULL in some column."""
    counted_elsewhere = class_of(horizon, _ANY_BITS).isin(MALFORMED_ROWS, FOREIGN_ROWS, BEYOND_ROWS)
    found = looked_at(rows, horizon).where(F.col(HAS_NULL) & ~counted_elsewhere)
    nulls = [F.when(F.col(name).isNull(), F.lit(name)) for name in CONTENT]
    names = F.array_compact(F.array(*nulls)).alias("columns")
    frame = finding_frame(found.select("id", "pid", names), kind=Kind.NULL.value, source=source)
    return sampled_rows(frame)


def foreign_rows(source: str, rows: DataFrame, horizon: Horizon) -> Findings:
    """Return the rows of other chains."""
    found = _of_class(rows, horizon, FOREIGN_ROWS).select("id", "pid", "chain_id")
    frame = finding_frame(found, kind=Kind.FOREIGN_CHAIN.value, source=source)
    return sampled_rows(frame)


def rows_beyond(source: str, rows: DataFrame, horizon: Horizon, head: int) -> Findings:
    """Return the rows after `head`, which may itself be after that of `horizon`."""
    found = _of_class(rows, horizon, BEYOND_ROWS).where(F.col("id") > head).select("id", "pid")
    frame = finding_frame(found, kind=Kind.BEYOND_HEAD.value, source=source, until_id=head)
    return sampled_rows(frame)


def _of_class(rows: DataFrame, horizon: Horizon, number: int) -> DataFrame:
    return looked_at(rows, horizon).where(class_of(horizon, _ANY_BITS) == number)


def rows_out_of_order(source: str, rows: DataFrame, horizon: Horizon) -> Findings:
    """Return the rows that come after a higher id, grouped by that id.

    A row that occurs twice is a duplicate; only its first occurrence counts here. This sorts the
    rows of each block, so it runs only if the scan found something.
    """
    nth = F.row_number().over(Window.partitionBy("id").orderBy(BLOCK, POSITION))
    own = placed(rows, horizon).select("id", BLOCK, POSITION)
    firsts = own.withColumn("nth", nth).where("nth = 1")
    # The highest id that comes before a row, in its own block or in an earlier one.
    window = Window.partitionBy(BLOCK).orderBy(POSITION).rowsBetween(Window.unboundedPreceding, -1)
    highest = F.greatest(F.max("id").over(window), _highest_of_blocks_before(firsts))
    late = firsts.withColumn("after_id", highest).where("id < after_id")
    groups = late.groupBy("after_id").agg(
        F.min("id").alias("id"), F.max("id").alias("until_id"), F.count(F.lit(1)).alias("count")
    )
    return sampled(finding_frame(groups, kind=Kind.OUT_OF_ORDER.value, source=source))


def _highest_of_blocks_before(firsts: DataFrame) -> Column:
    """Return, by block, the highest id of the earlier blocks; this reads one row per block."""
    blocks = firsts.groupBy(BLOCK).agg(F.max("id").alias("id")).orderBy(BLOCK).collect()
    before: int | None = None
    highest = F.lit(None).cast("bigint")
    for block in blocks:
        highest = F.when(F.col(BLOCK) == block[BLOCK], F.lit(before).cast("bigint")).otherwise(
            highest
        )
        before = block["id"] if before is None else max(before, block["id"])
    return highest
