"""Checks one source in plain Python, and names where it breaks first.

The rows are read once, in the order in which the source has them. If each names the one before it,
from the start to the head, they are one path, and nothing is left to look for. Else they are put in
order in a table on disk, and followed there up to the first break.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

import msgspec

from chain_kernel.limits import ID_MAX
from chain_kernel.model import split_client_key
from chain_verifier.checks.buckets import WHOLE_BITS, Bucket
from chain_verifier.checks.neighbours import gathered
from chain_verifier.findings import Finding, Findings, Kind
from chain_verifier.local.table import SQL, open_scratch
from chain_verifier.sources.content import CONTENT
from chain_verifier.stored_chain import StoredChain
from chain_verifier.verification import ScannedSource, require_own_rows

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterator, Sequence

    from chain_verifier.checks.buckets import Horizon
    from chain_verifier.local.table import LocalTable
    from chain_verifier.sources.content import Row
    from chain_verifier.verification import ScanPlan

_HASH_BYTES: Final = 8


class _Walk:
    """Takes the rows of one source in its order, and counts what belongs to no path."""

    def __init__(self, horizon: Horizon, how: ScanPlan, source: str) -> None:
        self.rows = self.foreign = self.unplaced = self.beyond = self.nulls = 0
        self.beyond_id: int | None = None
        self.is_sorted = True
        """Ids rise from row to row."""
        self.findings: dict[Kind, Finding] = {}
        """The first NULL, and the first row of another chain."""
        self._horizon = horizon
        self._source = source
        self._key = how.key.to_bytes(_HASH_BYTES, "big") if how.fingerprints else None
        self._prints = 0
        self._is_path = True
        self._at_id = self._last_id = self._highest = horizon.start
        self._first_id: int | None = None

    @property
    def is_path(self) -> bool:
        """True if the rows, in their order, lead from the start to the head."""
        return self._is_path and self._horizon.head in (None, self._at_id)

    def take(self, rows: Sequence[Row]) -> None:
        """Take the next rows."""
        head = self._horizon.head
        for row in rows:
            row_id, pid = row[1], row[2]
            if row_id is not None and self._horizon.is_before(row_id):
                continue
            if self._is_outside(row):
                continue
            if row_id <= self._highest:
                self.is_sorted = False
            self._highest = max(self._highest, row_id)
            if head is not None and row_id > head:
                self.beyond += 1
                self.beyond_id = max(row_id, self.beyond_id or row_id)
                continue
            if None in row:
                self.nulls += 1
                self._note_null(row)
            if pid != self._at_id or row_id <= pid:
                self._is_path = False
            self._at_id = row_id
            self._count(row, row_id)

    def _count(self, row: Row, row_id: int) -> None:
        self.rows += 1
        self._last_id = max(self._last_id, row_id)
        if self._first_id is None or row_id < self._first_id:
            self._first_id = row_id
        if self._key is not None:
            packed = msgspec.msgpack.encode(row)
            digest = blake2b(packed, digest_size=_HASH_BYTES, key=self._key).digest()
            self._prints += int.from_bytes(digest, "big")

    def _is_outside(self, row: Row) -> bool:
        """Note a row that is not of the chain, or has no place in it."""
        chain_id, row_id, pid = row[:3]
        if chain_id is not None and chain_id != self._horizon.chain_id:
            self.foreign += 1
            self._note(Kind.FOREIGN_CHAIN, id=row_id, pid=pid, chain_id=chain_id)
        elif chain_id is None or row_id is None or pid is None:
            self.unplaced += 1
            self._note_null(row)
        else:
            return False
        return True

    def _note_null(self, row: Row) -> None:
        columns = tuple(name for name, value in zip(CONTENT, row, strict=True) if value is None)
        self._note(Kind.NULL, id=row[1], pid=row[2], columns=columns)

    def _note(self, kind: Kind, **fields: Any) -> None:  # noqa: ANN401 - own type per field
        if kind not in self.findings:
            self.findings[kind] = Finding(kind=kind, source=self._source, **fields)

    def buckets(self) -> list[Bucket]:
        """Return all rows as one bucket; none without a row."""
        if self._first_id is None:
            return []
        return [
            Bucket(
                bits=WHOLE_BITS,
                number=0,
                rows=self.rows,
                is_whole=self.is_path,
                pid=self._horizon.start,
                first_id=self._first_id,
                last_id=self._last_id,
                nulls=self.nulls,
                fingerprint=self._prints,
            )
        ]


def examine(table: LocalTable, horizon: Horizon, how: ScanPlan) -> ScannedSource:
    """Read one source to its end, and name its first break if there is one.

    Raises InputError for content that belongs to no chain, SourceBroken when the source cannot be
    read to its end or changes between two looks.
    """
    # Rows are needed here only to be compared with those of another source.
    if isinstance(table, StoredChain) and not how.fingerprints:
        whole = table.whole(horizon)
        if whole is not None:
            return ScannedSource.whole(whole)
    walk = _Walk(horizon, how, table.name)
    for page in table.pages(horizon.start):
        walk.take(page)
    others = walk.foreign + walk.unplaced
    require_own_rows(table.name, horizon.chain_id, walk.rows + walk.beyond, others)
    table.is_sorted = walk.is_sorted
    found = list(walk.findings.values())
    if not walk.is_path:
        found += _breaks(table, horizon)
    return ScannedSource(
        buckets=walk.buckets(),
        findings=gathered(found),
        notes=table.notes(),
        rows_beyond=walk.beyond,
        beyond_id=walk.beyond_id,
    )


def placed_rows(table: LocalTable, horizon: Horizon) -> Iterator[Row]:
    """Yield the rows of the chain between start and head."""
    for page in table.pages(horizon.start):
        for row in page:
            if row[0] == horizon.chain_id and row[1] is not None and row[2] is not None:
                head = horizon.head
                if not horizon.is_before(row[1]) and (head is None or row[1] <= head):
                    yield row


def _breaks(table: LocalTable, horizon: Horizon) -> list[Finding]:
    """Return where the links break first, and the first rows that are out of order, if any."""
    with open_scratch("links", table.name) as scratch:
        scratch.executemany(SQL["keep_link"], _with_highest_before(table, horizon))
        scratch.execute(SQL["links_by_id"])
        scratch.execute(SQL["links_by_pid"])
        found = [_Links(scratch, table, horizon).first_break()]
        late = scratch.execute(SQL["late"]).fetchone() if table.has_positions else None
        if late is not None:
            first_id, last_id, highest, rows = late
            found.append(
                Finding(
                    kind=Kind.OUT_OF_ORDER,
                    source=table.name,
                    id=first_id,
                    until_id=last_id,
                    after_id=highest,
                    count=rows,
                )
            )
        return [one for one in found if one is not None]


def _with_highest_before(table: LocalTable, horizon: Horizon) -> Iterator[tuple[int, int, int]]:
    highest = horizon.start or -ID_MAX
    for row in placed_rows(table, horizon):
        yield row[1], row[2], highest
        highest = max(highest, row[1])


class _Links:
    """The rows of a source by id and by pid; they are followed up to the first break.

    Up to there each row names the one before it. So what a break is follows from the rows around
    it; `find_faults` of `chain_verifier.checks.buckets` calls it the same.
    """

    def __init__(self, scratch: sqlite3.Connection, table: LocalTable, horizon: Horizon) -> None:
        self._scratch = scratch
        self._source = table.name
        self._skips = table.may_lack
        self._horizon = horizon
        (highest,) = scratch.execute(SQL["highest"]).fetchone()
        self._end = highest if horizon.head is None else horizon.head

    def first_break(self) -> Finding | None:
        """Return where the rows, in the order of ids, are no path; None if they are one."""
        at_id = self._horizon.start
        for row_id, pid in self._scratch.execute(SQL["links_in_order"]):
            if pid != at_id or row_id <= pid:
                found = self._break(at_id, row_id, pid)
                if found is not None:
                    return found
            at_id = row_id
        if self._horizon.head is None or at_id == self._horizon.head:
            return None
        return self._gap(at_id, self._horizon.head)

    def _break(self, at_id: int, row_id: int, pid: int) -> Finding | None:
        """Return what is wrong with a row after `at_id`; None where the gap before it may be."""
        # The chain begins at 0, which is no row: one with this id occurs once.
        if row_id == at_id and (times := self._times(row_id)) > 1:
            return self._found(Kind.DUPLICATE, id=row_id, count=times)
        if pid >= row_id:
            return self._found(Kind.PID_NOT_BELOW_ID, id=row_id, pid=pid)
        ids = tuple(one for (one,) in self._scratch.execute(SQL["naming"], (pid,)))
        if len(ids) > 1 and (pid == self._horizon.start or self._times(pid)):
            kind = Kind.SECOND_ROOT if pid == self._horizon.start else Kind.FORK
            return self._found(kind, pid=pid, ids=ids)
        goes_on = self._scratch.execute(SQL["naming"], (at_id,)).fetchone() is not None
        if pid < at_id or goes_on:
            return self._found(Kind.ORPHAN, id=row_id, pid=pid)
        until_id, _ = self._scratch.execute(SQL["far_end"], (at_id, row_id, self._end)).fetchone()
        gap = self._gap(at_id, until_id)
        if gap is None and until_id != pid:
            return self._found(Kind.ORPHAN, id=row_id, pid=pid)
        return gap

    def _times(self, row_id: int) -> int:
        (times,) = self._scratch.execute(SQL["times"], (row_id,)).fetchone()
        return int(times)

    def _gap(self, after_id: int, until_id: int) -> Finding | None:
        if any(after <= after_id and until_id <= until for after, until in self._skips):
            return None
        return self._found(Kind.GAP, after_id=after_id, until_id=until_id)

    def _found(self, kind: Kind, **fields: Any) -> Finding:  # noqa: ANN401 - own type per field
        return Finding(kind=kind, source=self._source, **fields)


def rows_beyond(table: LocalTable, horizon: Horizon, head: int) -> Findings:
    """Return the first row after `head`, which may itself be after that of `horizon`."""
    own = (
        row
        for page in table.pages(horizon.start)
        for row in page
        if row[0] == horizon.chain_id and None not in row[1:3] and row[1] > head
    )
    first = min(own, key=lambda row: row[1], default=None)
    if first is None:
        return Findings()
    fields = {"id": first[1], "pid": first[2], "until_id": head}
    return gathered([Finding(kind=Kind.BEYOND_HEAD, source=table.name, **fields)])


def repeated_keys(table: LocalTable, horizon: Horizon, window_rows: int) -> Findings:
    """Return the first row whose key an earlier row has, with the nearest such row.

    A free-form key may repeat once `window_rows` rows lie between; a client's number never.
    Raises SourceBroken.
    """
    with open_scratch("keys", table.name) as scratch:
        # As bytes: for some functions of SQLite, a text ends at a NUL.
        values = (
            (row[1], None if row[3] is None else row[3].encode())
            for row in placed_rows(table, horizon)
        )
        scratch.executemany(SQL["keep_key"], values)
        scratch.execute(SQL["repeats"])
        # Ids skip numbers, so few rows may lie between two ids that are far apart.
        (is_far,) = scratch.execute(SQL["is_far"], (window_rows,)).fetchone()
        scratch.execute(SQL["places"])
        if is_far:
            scratch.execute(SQL["fill_places"])
        for before_id, row_id, key, rows in scratch.execute(SQL["repeated"]):
            text = key.decode()
            near = row_id - before_id if rows is None else rows
            if near <= window_rows or split_client_key(text) is not None:
                ids = (before_id, row_id)
                found = Finding(
                    kind=Kind.REPEATED_KEY, source=table.name, id=row_id, ids=ids, key=text
                )
                return gathered([found])
    return Findings()
