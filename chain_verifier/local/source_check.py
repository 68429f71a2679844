"""Checks one source against the theorem in plain Python, and two against each other.

Two sources are compared row by row only where their fingerprints differ.
"""

from __future__ import annotations

from hashlib import blake2b
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Struct

from chain_kernel.model import split_client_key
from chain_verifier.checks.buckets import Bucket, Link, row_count
from chain_verifier.checks.neighbours import collected
from chain_verifier.findings import Finding, Findings, Kind, joined_findings
from chain_verifier.local.database import LocalDatabaseTable
from chain_verifier.local.table import SQL, open_scratch
from chain_verifier.verification import CONTENT, ScannedSource, link_faults, require_own_rows

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from chain_verifier.checks.buckets import Horizon
    from chain_verifier.local.table import LocalTable, Row
    from chain_verifier.local.topic import LocalTopicTable
    from chain_verifier.verification import ScanPlan


# -- the one scan: the same sums per bucket of ids as in the other mode ----------------------------
#
# For a row whose pid is the id of the row right before it, the same hash would be added on one side
# and subtracted on the other. So only nodes where the links break are hashed at all.

_HASH_BYTES = 8
_LOW_HALF = 0xFFFF_FFFF
_HALF_BITS = 32


class LocalScan(Struct, frozen=True, kw_only=True):
    """What one scan found."""

    buckets: list[Bucket]
    """Sorted by id."""
    is_in_order: bool
    """In their given order, the rows form one path from the start to the head."""
    foreign: int
    """Rows of another chain."""
    unplaced: int
    """Rows without id, pid or chain."""
    beyond: int
    """Rows after the head."""
    beyond_id: int | None
    """The highest id after the head."""


class _Sums:
    """One bucket while it is being filled."""

    __slots__ = ("balance", "first_id", "is_rising", "last_id", "nulls", "pid", "prints", "rows")

    def __init__(self, row_id: int, pid: int) -> None:
        self.rows = 0
        self.balance = 0
        self.is_rising = True
        self.first_id = self.last_id = row_id
        self.pid = pid
        self.nulls = 0
        self.prints = 0


class Scanner:
    """Takes rows, page by page, and returns the buckets at the end. Hashes nodes under `key`."""

    def __init__(self, horizon: Horizon, bits: int, key: int, *, fingerprints: bool) -> None:
        self._horizon = horizon
        self._bits = bits
        self._key = key.to_bytes(_HASH_BYTES, "big")
        self._fingerprints = fingerprints
        self._sums: dict[int, _Sums] = {}
        self._open: tuple[_Sums, int] | None = None
        self._at_id = horizon.start
        self._is_in_order = True
        self._foreign = self._unplaced = self._beyond = 0
        self._beyond_id: int | None = None

    def take(self, rows: Iterable[Row]) -> None:
        """Add the rows of one page."""
        for row in looked_at(rows, self._horizon):
            row_id, pid = row[1], row[2]
            if self._is_outside(row):
                self._is_in_order = False
                continue
            sums = self._sums_of(row_id, pid)
            self._link(sums, row_id, pid)
            self._count(sums, row, row_id, pid)
            if pid != self._at_id:
                self._is_in_order = False
            self._at_id = row_id

    def _is_outside(self, row: Row) -> bool:
        """Count a row that no bucket can hold."""
        chain_id, row_id, pid = row[:3]
        if chain_id is not None and chain_id != self._horizon.chain_id:
            self._foreign += 1
        elif chain_id is None or row_id is None or pid is None:
            self._unplaced += 1
        elif self._horizon.head is not None and row_id > self._horizon.head:
            self._beyond += 1
            self._beyond_id = max(row_id, self._beyond_id or row_id)
        else:
            return False
        return True

    def _sums_of(self, row_id: int, pid: int) -> _Sums:
        number = row_id >> self._bits
        sums = self._sums.get(number)
        if sums is None:
            sums = self._sums[number] = _Sums(row_id, pid)
        return sums

    def _link(self, sums: _Sums, row_id: int, pid: int) -> None:
        if self._open != (sums, pid):
            self._close()
            sums.balance -= self._hash(pid)
        self._open = (sums, row_id)

    def _close(self) -> None:
        """Add the node that the last row leads to, which the next row did not subtract."""
        if self._open is not None:
            sums, node = self._open
            sums.balance += self._hash(node)
            self._open = None

    def _hash(self, node: int) -> int:
        text = node.to_bytes(_HASH_BYTES, "big", signed=True)
        return int.from_bytes(blake2b(text, digest_size=_HASH_BYTES, key=self._key).digest(), "big")

    def _count(self, sums: _Sums, row: Row, row_id: int, pid: int) -> None:
        sums.rows += 1
        if row_id > sums.last_id:
            sums.last_id = row_id
        elif row_id < sums.first_id:
            sums.first_id = row_id
        if pid < sums.pid:
            sums.pid = pid
        if pid >= row_id:
            sums.is_rising = False
        if None in row:
            sums.nulls += 1
        if self._fingerprints:
            sums.prints += self._print(row)

    def _print(self, row: Row) -> int:
        digest = blake2b(
            msgspec.msgpack.encode(row), digest_size=_HASH_BYTES, key=self._key
        ).digest()
        return int.from_bytes(digest, "big")

    def end(self) -> LocalScan:
        """Return what was found."""
        self._close()
        head = self._horizon.head
        return LocalScan(
            buckets=[self._bucket(number) for number in sorted(self._sums)],
            is_in_order=self._is_in_order and (head is None or self._at_id == head),
            foreign=self._foreign,
            unplaced=self._unplaced,
            beyond=self._beyond,
            beyond_id=self._beyond_id,
        )

    def _bucket(self, number: int) -> Bucket:
        sums = self._sums[number]
        rest = sums.balance + self._hash(sums.pid) - self._hash(sums.last_id)
        return Bucket(
            bits=self._bits,
            number=number,
            rows=sums.rows,
            is_whole=rest == 0 and sums.is_rising,
            pid=sums.pid,
            first_id=sums.first_id,
            last_id=sums.last_id,
            nulls=sums.nulls,
            fingerprint=(sums.prints & _LOW_HALF, sums.prints >> _HALF_BITS),
        )


def looked_at(rows: Iterable[Row], horizon: Horizon) -> Iterable[Row]:
    """Return the rows after the start; those without an id stay, to be found."""
    if horizon.start == 0:
        return rows
    return [row for row in rows if row[1] is None or row[1] > horizon.start]


def is_placed(row: Row, horizon: Horizon) -> bool:
    """Return whether a row falls into a bucket: it is of the chain, and not after the head."""
    return (
        row[0] == horizon.chain_id
        and row[1] is not None
        and row[2] is not None
        and (horizon.head is None or row[1] <= horizon.head)
    )


def in_buckets(buckets: Sequence[Bucket]) -> tuple[tuple[int, int], _Membership]:
    """Return the range over all of `buckets`, and what shows whether an id falls into one."""
    lower_id = min(bucket.lower_id for bucket in buckets)
    upper_id = max(bucket.upper_id for bucket in buckets)
    return (lower_id, upper_id), _Membership(buckets)


class _Membership:
    def __init__(self, buckets: Sequence[Bucket]) -> None:
        widths = {bucket.bits for bucket in buckets}
        self._numbers = [
            (bits, {bucket.number for bucket in buckets if bucket.bits == bits}) for bits in widths
        ]

    def chosen(self, rows: Iterable[Row], horizon: Horizon) -> Iterator[Row]:
        """Yield the rows that are placed, and whose ids fall into one of the buckets."""
        for row in looked_at(rows, horizon):
            if is_placed(row, horizon) and any(
                row[1] >> bits in numbers for bits, numbers in self._numbers
            ):
                yield row


# -- the checks of a source, and of two against each other -----------------------------------------


def rows_out_of_order(table: LocalTable, horizon: Horizon) -> Findings:
    """Return the rows that come after a higher id, grouped by that id.

    A row that occurs twice is a duplicate; only its first occurrence counts here. Runs only if the
    scan found something, since it keeps every id on disk for a while.
    """

    def look() -> Iterator[Finding]:
        with open_scratch("firsts", table.name) as scratch:
            for pairs in _with_highest_before(table, horizon):
                scratch.executemany(SQL["first"], pairs)
            for first_id, last_id, highest, rows in scratch.execute(SQL["late"]):
                yield Finding(
                    kind=Kind.OUT_OF_ORDER,
                    source=table.name,
                    id=first_id,
                    until_id=last_id,
                    after_id=highest,
                    count=rows,
                )

    return collected(look)


def _with_highest_before(table: LocalTable, horizon: Horizon) -> Iterator[list[tuple[int, int]]]:
    highest = horizon.start
    for page in table.pages(content=False):
        pairs = []
        for row in looked_at(page, horizon):
            if is_placed(row, horizon):
                pairs.append((row[1], highest))
                highest = max(highest, row[1])
        yield pairs


def examine(table: LocalTable, horizon: Horizon, how: ScanPlan) -> ScannedSource:
    """Scan one source, and locate its faults if there are any.

    Raises InputError for content that belongs to no chain, SourceBroken when the source cannot be
    read to its end or changes between two looks.
    """
    # Fingerprints are kept per bucket in any case.
    if isinstance(table, LocalDatabaseTable) and not how.fingerprints:
        whole = table.whole(horizon)
        if whole is not None:
            return ScannedSource.whole(whole)
    scanner = Scanner(horizon, how.bits, how.key, fingerprints=how.fingerprints)
    for page in table.pages(_ids_of(horizon), content=how.fingerprints):
        scanner.take(page)
    found = scanner.end()
    own, others = row_count(found.buckets) + found.beyond, found.foreign + found.unplaced
    require_own_rows(table.name, horizon.chain_id, own, others)
    findings = [
        _faults(table, horizon, how, found),
        _nulls(table, horizon, found),
        _foreign(table, horizon, found),
    ]
    return ScannedSource(
        buckets=found.buckets,
        findings=joined_findings(findings),
        notes=table.notes(),
        rows_beyond=found.beyond,
        beyond_id=found.beyond_id,
    )


def _faults(table: LocalTable, horizon: Horizon, how: ScanPlan, found: LocalScan) -> Findings:
    if table.has_positions and found.is_in_order:
        return Findings()
    opener = _RowOpener(table, horizon, how)
    faults = link_faults(table.name, found.buckets, horizon, opener, how.leaf_bits)
    return (
        joined_findings([faults, rows_out_of_order(table, horizon)])
        if table.has_positions
        else faults
    )


class _RowOpener:
    """The `Opener` of `chain_verifier.checks.buckets` on a source that is read once more."""

    def __init__(self, table: LocalTable, horizon: Horizon, how: ScanPlan) -> None:
        self._table = table
        self._horizon = horizon
        self._how = how

    def split(self, buckets: Sequence[Bucket], bits: int) -> list[Bucket]:
        """Return the rows of `buckets`, all of one width, in buckets of 2^bits ids."""
        scanner = Scanner(self._horizon, bits, self._how.key, fingerprints=False)
        for rows in self._chosen(buckets):
            scanner.take(rows)
        return scanner.end().buckets

    def links(self, buckets: Sequence[Bucket]) -> list[Link]:
        """Return every row of `buckets`."""
        chosen = self._chosen(buckets)
        return [Link(pid, row_id, row_id) for rows in chosen for _, row_id, pid, *_ in rows]

    def _chosen(self, buckets: Sequence[Bucket]) -> Iterator[Iterator[Row]]:
        ids, membership = in_buckets(buckets)
        for page in self._table.pages(ids, content=False):
            yield membership.chosen(page, self._horizon)


def _nulls(table: LocalTable, horizon: Horizon, found: LocalScan) -> Findings:
    count = sum(bucket.nulls for bucket in found.buckets) + found.unplaced

    def look() -> Iterator[Finding]:
        for row in _rows(table, horizon):
            if _has_null_of_its_own(row, horizon):
                pairs = zip(CONTENT, row, strict=True)
                columns = tuple(name for name, value in pairs if value is None)
                yield Finding(
                    kind=Kind.NULL, source=table.name, id=row[1], pid=row[2], columns=columns
                )

    return _in_order(table, look) if count else Findings()


def _has_null_of_its_own(row: Row, horizon: Horizon) -> bool:
    """Whether a row has a NULL, and is not counted as one of another chain or after the head."""
    if None not in row or row[0] not in (None, horizon.chain_id):
        return False
    is_unplaced = None in row[:3]
    return is_unplaced or horizon.head is None or row[1] <= horizon.head


def _foreign(table: LocalTable, horizon: Horizon, found: LocalScan) -> Findings:
    def look() -> Iterator[Finding]:
        for chain_id, row_id, pid, *_ in _rows(table, horizon):
            if chain_id not in (None, horizon.chain_id):
                yield Finding(
                    kind=Kind.FOREIGN_CHAIN, source=table.name, id=row_id, pid=pid,
                    chain_id=chain_id,
                )  # fmt: skip

    return _in_order(table, look) if found.foreign else Findings()


def rows_beyond(table: LocalTable, horizon: Horizon, head: int) -> Findings:
    """Return the rows after `head`, which may itself be after that of `horizon`."""

    def look() -> Iterator[Finding]:
        for row in _rows(table, horizon):
            if row[0] == horizon.chain_id and None not in row[1:3] and row[1] > head:
                yield Finding(
                    kind=Kind.BEYOND_HEAD, source=table.name, until_id=head, id=row[1], pid=row[2]
                )

    return _in_order(table, look)


def _in_order(table: LocalTable, look: Callable[[], Iterator[Finding]]) -> Findings:
    """Return the findings that `look` yields in any order; they are sorted on disk."""

    def look_in_order() -> Iterator[Finding]:
        with open_scratch("found", table.name) as scratch:
            scratch.executemany(SQL["keep_found"], map(_packed, look()))
            for (found,) in scratch.execute(SQL["found_in_order"]):
                yield msgspec.msgpack.decode(found, type=Finding)

    return collected(look_in_order)


def _packed(finding: Finding) -> tuple[Any, ...]:
    columns = ",".join(finding.columns)
    packed = msgspec.msgpack.encode(finding)
    return finding.id, finding.pid, columns, finding.chain_id, packed


def repeated_keys(table: LocalTable, horizon: Horizon, window_rows: int) -> Findings:
    """Return the rows whose key an earlier row has, each with the nearest such row.

    A free-form key may repeat once `window_rows` rows lie between; a client's number never.
    Raises SourceBroken.
    """

    def look() -> Iterator[Finding]:
        with open_scratch("keys", table.name) as scratch:
            _keep_keys(scratch, table, horizon)
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
                    yield Finding(
                        kind=Kind.REPEATED_KEY,
                        source=table.name,
                        id=row_id,
                        ids=(before_id, row_id),
                        key=text,
                    )

    return collected(look)


def _keep_keys(scratch: sqlite3.Connection, table: LocalTable, horizon: Horizon) -> None:
    for page in table.pages(_ids_of(horizon)):
        rows = (row for row in looked_at(page, horizon) if is_placed(row, horizon))
        # As bytes: for some functions of SQLite, a text ends at a NUL.
        values = ((row[1], None if row[3] is None else row[3].encode()) for row in rows)
        scratch.executemany(SQL["keep_key"], values)


def _rows(table: LocalTable, horizon: Horizon) -> Iterator[Row]:
    for page in table.pages(_ids_of(horizon), content=False):
        yield from looked_at(page, horizon)


def _ids_of(horizon: Horizon) -> tuple[int, int] | None:
    """Return the ids after the start, so that a source need not read earlier rows."""
    return (horizon.start + 1, 2**63) if horizon.start else None


_COMPARED: Final = CONTENT[2:]


def compare(
    table: LocalTable,
    base: LocalTable,
    differing: Sequence[Bucket],
    horizon: Horizon,
    skips: Sequence[tuple[int, int]] = (),
) -> Findings:
    """Return what `table` lacks, has in surplus, or holds otherwise in the `differing` buckets."""

    def look() -> Iterator[Finding]:
        with open_scratch("pairs", f"{table.name} against {base.name}") as scratch:
            _keep(scratch, table, differing, horizon, is_base=False)
            _keep(scratch, base, differing, horizon, is_base=True)
            for found in _findings(scratch, table.name, base.name):
                if found.kind is not Kind.LACKING or not _is_in(found.id or 0, skips):
                    yield found

    return collected(look)


def forged_findings(topic: LocalTopicTable, base: LocalTable) -> Findings:
    """Return the rows of forged frames that `base` does not hold, or holds with other content.

    The rows to look for are written to disk first, then `base` is read once.
    """
    if not topic.has_forged:
        return Findings()

    def look() -> Iterator[Finding]:
        with open_scratch("pairs", f"{topic.name} against {base.name}") as scratch:
            scratch.execute(SQL["wanted"])
            for page in topic.forged_pages():
                scratch.executemany(SQL["want"], ((row[1],) for row in page))
                scratch.executemany(SQL["pair"], (_kept(row, is_base=False) for row in page))
            first_id, last_id = scratch.execute(SQL["wanted_range"]).fetchone()
            for page in base.pages((first_id, last_id + 1)):
                own = (row for row in page if row[0] == topic.chain_id and row[1] is not None)
                values = ((*_kept(row, is_base=True), row[1]) for row in own)
                scratch.executemany(SQL["pair_if_wanted"], values)
            scratch.execute(SQL["without_repeats"])
            for found in _findings(scratch, topic.name, base.name):
                if found.kind is not Kind.LACKING:
                    yield found

    return collected(look)


def _is_in(row_id: int, ranges: Sequence[tuple[int, int]]) -> bool:
    return any(after < row_id <= until for after, until in ranges)


def _keep(
    scratch: sqlite3.Connection,
    table: LocalTable,
    buckets: Sequence[Bucket],
    horizon: Horizon,
    *,
    is_base: bool,
) -> None:
    ids, membership = in_buckets(buckets)
    for page in table.pages(ids):
        rows = membership.chosen(page, horizon)
        scratch.executemany(SQL["pair"], (_kept(row, is_base=is_base) for row in rows))


def _kept(row: Row, *, is_base: bool) -> tuple[Any, ...]:
    _, row_id, pid, key, event_time_ns, payload = row
    # As bytes: for some functions of SQLite, texts end at a NUL; and they sort as bytes anyway.
    return row_id, is_base, pid, None if key is None else key.encode(), event_time_ns, payload


def _findings(scratch: sqlite3.Connection, source: str, against: str) -> Iterator[Finding]:
    for kind, row_id, pid, columns in _differences(scratch.execute(SQL["sorted"])):
        yield Finding(
            kind=kind, source=source, against=against, id=row_id, pid=pid, columns=columns
        )


def _differences(
    rows: Iterable[tuple[Any, ...]],
) -> Iterator[tuple[Kind, int, int | None, tuple[str, ...]]]:
    """Yield the ids at which the two differ, with the kind of difference and the lowest pid there.

    The pid is that of the base, but for a row in surplus.
    """
    for row_id, group in groupby(rows, key=itemgetter(0)):
        sides = {is_base: _side(found) for is_base, found in groupby(group, key=itemgetter(1))}
        own, base = sides.get(0), sides.get(1)
        times = 0 if own is None else own[0]
        times_base = 0 if base is None else base[0]
        if base is not None and times < times_base:
            yield Kind.LACKING, row_id, _pid(base), ()
        elif own is not None and times > times_base:
            yield Kind.SURPLUS, row_id, _pid(own), ()
        elif own is not None and base is not None and own != base:
            yield Kind.DIFFERING, row_id, _pid(base), _columns(own, base)


_Side = tuple[int, tuple[Any, ...], tuple[Any, ...]]
"""How often a row occurs on one side, its lowest and its highest content."""


def _pid(side: _Side) -> int | None:
    pid: int | None = side[1][0]
    return pid


def _side(rows: Iterable[tuple[Any, ...]]) -> _Side:
    times, lowest, highest = 0, None, ()
    for row in rows:
        times, highest = times + 1, row[2:]
        lowest = highest if lowest is None else lowest
    return times, lowest or (), highest


def _columns(own: _Side, base: _Side) -> tuple[str, ...]:
    return tuple(
        name
        for index, name in enumerate(_COMPARED)
        if own[1][index] != base[1][index] or own[2][index] != base[2][index]
    )
