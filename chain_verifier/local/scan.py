"""The one scan in plain Python: the same sums per bucket of ids as in the other mode.

For a row whose pid is the id of the row right before it, the same hash would be added on one side
and subtracted on the other. So only nodes where the links break are hashed at all.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from chain_verifier.checks.buckets import Bucket

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from chain_verifier.checks.buckets import Horizon
    from chain_verifier.local.table import Row

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
