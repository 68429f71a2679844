"""Holds one source against the theorem, and names what is wrong where it does not hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chain_verifier.bucket import is_one_path, row_count
from chain_verifier.disorder import rows_out_of_order
from chain_verifier.examined import Examined
from chain_verifier.findings import Findings, gathered, joined
from chain_verifier.locate import locate
from chain_verifier.open_rows import RowOpener, foreign_rows, rows_with_null
from chain_verifier.scan import (
    BEYOND_ROWS,
    FOREIGN_ROWS,
    MALFORMED_ROWS,
    UNPLACED_ROWS,
    Scan,
    is_one_ordered_path,
    scan,
)
from chain_verifier.sources.database import DatabaseTable
from chain_verifier.sources.journal import JournalTable
from chain_verifier.spark_errors import as_broken
from chain_verifier.whole import whole_chain
from orderchain.counted import counted
from orderchain.errors import InputError, SourceBroken

if TYPE_CHECKING:
    from chain_verifier.bucket import Bucket
    from chain_verifier.horizon import Horizon
    from chain_verifier.how import How
    from chain_verifier.sources.table import Table


def examine(table: Table, horizon: Horizon, how: How) -> Examined:
    """Scan one source, and locate its faults if there are any.

    Raises InputError for content that is no chain's, SourceBroken when it cannot be read to its end
    or changes between two looks.
    """
    with as_broken(table.name):
        # Positions and fingerprints are kept by bucket in any case.
        if not table.has_positions and not how.fingerprints:
            paths = table.paths if isinstance(table, DatabaseTable) else table.rows
            whole = whole_chain(paths, horizon, how.key)
            if whole is not None:
                return _faultless(whole)
        return _examine_buckets(table, horizon, how)


def _faultless(whole: Bucket) -> Examined:
    return Examined(
        buckets=[whole],
        findings=Findings(),
        notes=(),
        rows_beyond=0,
        beyond_id=None,
        is_whole=True,
    )


def _examine_buckets(table: Table, horizon: Horizon, how: How) -> Examined:
    found = scan(
        table.rows,
        horizon,
        how.bits,
        how.key,
        positions=table.has_positions,
        fingerprints=how.fingerprints,
    )
    notes = _notes_on_end(table, found)
    _require_own_rows(table, horizon, found)
    return Examined(
        buckets=found.buckets,
        findings=joined(_findings(table, horizon, how, found)),
        notes=notes,
        rows_beyond=found.outside.get(BEYOND_ROWS, 0),
        beyond_id=found.beyond_id,
    )


def _notes_on_end(table: Table, found: Scan) -> tuple[str, ...]:
    """Tell an incomplete last line, which a crash may leave, from lines that are no rows."""
    count = found.outside.get(MALFORMED_ROWS, 0)
    if not count or not isinstance(table, JournalTable):
        return ()
    is_behind_all = found.end is None or (found.malformed_at or (0, 0)) > found.end
    if count == 1 and is_behind_all and table.may_end_torn():
        return ("the last line is incomplete, and was left out",)
    raise table.malformed_error()


def _require_own_rows(table: Table, horizon: Horizon, found: Scan) -> None:
    """Refuse a source that holds rows, but none of this chain: it is the wrong one."""
    own = row_count(found.buckets) + found.outside.get(BEYOND_ROWS, 0)
    others = found.outside.get(FOREIGN_ROWS, 0) + found.outside.get(UNPLACED_ROWS, 0)
    if others and not own:
        raise InputError(
            table.name,
            f"{counted(others, 'row')}, none of chain {horizon.chain_id}",
            "rows of the chain",
        )


def _findings(table: Table, horizon: Horizon, how: How, found: Scan) -> list[Findings]:
    return [
        _faults(table, horizon, how, found),
        _nulls(table, horizon, found),
        _foreign(table, horizon, found),
    ]


def _faults(table: Table, horizon: Horizon, how: How, found: Scan) -> Findings:
    if not table.has_positions:
        return _link_faults(table, horizon, how, found.buckets)
    if is_one_ordered_path(found.stretches, horizon):
        return Findings()
    # Which of the two it is, a wrong set of rows or a wrong order, takes a look at each alone.
    by_id = scan(table.rows, horizon, how.bits, how.key, positions=False, fingerprints=False)
    faults = _link_faults(table, horizon, how, by_id.buckets)
    return joined([faults, rows_out_of_order(table.name, table.rows, horizon)])


def _link_faults(table: Table, horizon: Horizon, how: How, buckets: list[Bucket]) -> Findings:
    if is_one_path(buckets, horizon):
        return Findings()
    opener = RowOpener(table.rows, horizon, how.key)
    faults = locate(table.name, buckets, horizon, opener, how.leaf_bits)
    if not faults:
        raise SourceBroken(table.name, "it changed while it was being read")
    return gathered(faults)


def _nulls(table: Table, horizon: Horizon, found: Scan) -> Findings:
    count = sum(bucket.nulls for bucket in found.buckets) + found.outside.get(UNPLACED_ROWS, 0)
    if not count:
        return Findings()
    return rows_with_null(table.name, table.rows, horizon, count)


def _foreign(table: Table, horizon: Horizon, found: Scan) -> Findings:
    count = found.outside.get(FOREIGN_ROWS, 0)
    if not count:
        return Findings()
    return foreign_rows(table.name, table.rows, horizon, count)
