"""The chain in its database: what both modes read from it, besides the rows."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from contextlib import contextmanager
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from chain_kernel.errors import ChainMissing, OrderchainError, SourceBroken
from chain_kernel.sql import load_sql, require_version
from chain_kernel.text import reason_of
from chain_verifier.checks.topic_frames import FrameKeys, judged

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from chain_verifier.checks.topic_frames import TopicRecord
    from chain_verifier.findings import Findings


SQL: Final = load_sql("chain_verifier", "database.sql")
"""The statements of both modes, for `filled`."""

_PLACE: Final = re.compile(r"\$([0-9]+)")
_BELOW_ALL: Final = -(2**63) + 1


class DatabaseHead(Struct, frozen=True, kw_only=True):
    """The state of a chain at one instant."""

    last_id: int
    """head_persisted; 0 for an empty chain."""
    boundary_id: int = 0
    """The last id of rows that were archived and detached; 0 if none were."""
    first_row_id: int | None
    last_row_id: int | None
    """The lowest and the highest id that pages name; None when the chain has no page."""
    rows_counted: int
    """The rows that the commits of the chain counted."""
    rows_after_start: int | None
    """Those of them after the start of the verification; None if no batch ends there."""
    batches_counted: int
    has_rules: bool
    """Validated constraints guarantee that no page holds a NULL, columns of unequal length, or ends
    other than those it states."""
    seal: bytes
    """The seal after the last batch."""
    epoch: int
    published_id: int
    """head_published, as far as a commit has reported it."""
    topic: str
    topic_partition: int
    database_id: str


def head_of(row: dict[str, Any]) -> DatabaseHead | None:
    """Return a row of the statement `head`; None for a chain that does not exist.

    Raises SchemaError.
    """
    require_version(row)
    if row["last_id"] is None:
        return None
    known = {name: row[name] for name in DatabaseHead.__struct_fields__}
    return DatabaseHead(**known)


def filled(statement: str, *values: int | bool | Sequence[int]) -> str:
    """Return `statement` with `values` for `$1`, `$2`, ...: the first is the chain's number, or
    those of several.

    The values become constants, so that PostgreSQL plans only for the partitions of this chain.
    They are whole numbers, booleans and sequences of numbers: nothing in them needs quoting.
    """

    def shown(place: re.Match[str]) -> str:
        value = values[int(place[1]) - 1]
        if isinstance(value, int):
            return "true" if value is True else "false" if value is False else f"({int(value)})"
        return f"'{{{','.join(str(int(one)) for one in value)}}}'"

    return _PLACE.sub(shown, statement)


def page_ranges(ends: Iterable[int], start: int, last_id: int) -> list[tuple[int, int]]:
    """Return ranges (after, until] of the ends of pages: all after `start` up to `last_id`, cut at
    `ends`; for the whole chain, also those that claim to end below its first row.
    """
    bounds = sorted({end for end in ends if start < end < last_id})
    return list(pairwise((start or _BELOW_ALL, *bounds, last_id)))


def ends_by_size(sizes: Sequence[Any], bytes_max: int) -> Iterator[int]:
    """Yield where to cut batches, given as by `sealed_sizes`, into ranges of about `bytes_max`
    bytes, of at least one batch.
    """
    held = 0
    for batch, following in zip(sizes, [*sizes[1:], None], strict=True):
        if following is None or following["bytes"] - held > bytes_max:
            held = batch["bytes"]
            yield batch["last_id"]


def flat(column: list[Any] | None) -> list[Any]:
    """Return the values of an array of any number of dimensions, in their order."""
    values = column or []
    while values and isinstance(values[0], list):
        values = list(chain.from_iterable(values))
    return values


class DatabaseFacts(ABC):
    """One chain in PostgreSQL, opened: its head was read before anything else."""

    has_positions: Final = False
    """The rows of a table have no order of their own."""
    may_lack: Final = ()
    head: DatabaseHead

    def __init__(self, name: str, chain_id: int, start: int) -> None:
        self.name = name
        self._chain_id = chain_id
        self._start = start
        self._faults: Findings | None = None

    @abstractmethod
    def _ask(self, statement: str) -> list[Any]:
        """Return the rows of a statement. Raises what `Session.fetch` raises."""

    def _fetch(self, name: str, *values: int | bool | Sequence[int]) -> list[Any]:
        return self._ask(filled(SQL[name], self._chain_id, *values))

    @contextmanager
    def _as_broken(self) -> Iterator[None]:
        try:
            yield
        except OrderchainError as error:
            raise SourceBroken(self.name, reason_of(error)) from error

    def _read_head(self) -> DatabaseHead:
        (found,) = self._ask(filled(SQL["head"], [self._chain_id], [self._start]))
        head = head_of(dict(found))
        if head is None:
            raise ChainMissing(self._chain_id)
        return head

    def head_now(self) -> int:
        """Read head_persisted once more. Raises SourceBroken."""
        with self._as_broken():
            return self._read_head().last_id

    def boundary_now(self) -> int:
        """Read once more where archived rows end. Raises SourceBroken."""
        with self._as_broken():
            return int(self._fetch("boundary")[0]["boundary_id"])

    def skips(self) -> list[tuple[int, int]]:
        """Return the ranges (after, until] that were never published. Raises SourceBroken."""
        with self._as_broken():
            return [tuple(row) for row in self._fetch("skips")]

    def seal_at(self, last_id: int) -> bytes | None:
        """Return the seal after the batch that ends with `last_id`; None if none does."""
        with self._as_broken():
            found = self._fetch("seal_at", last_id)
        return found[0]["seal"] if found else None

    def frame_keys(self) -> FrameKeys:
        """Return the keys of all terms that exist by now. Raises SourceBroken."""
        with self._as_broken():
            return FrameKeys({row[0]: row[1] for row in self._fetch("terms")})

    def judged(self, records: Sequence[TopicRecord]) -> Iterator[TopicRecord]:
        """Yield records of a topic, judged by the batches of the database: as of now, since what is
        committed while a topic is read counts too. Raises SourceBroken.
        """
        asked = {record.first_pid for record in records if record.reason is None}
        with self._as_broken():
            found = self._fetch("batches_at", list(asked)) if asked else []
        batches = {row["at_id"]: row for row in found}
        return (judged(record, batches.get(record.first_pid)) for record in records)

    @abstractmethod
    def page_faults(self) -> Findings:
        """Return what is wrong with pages as such, whatever their rows are; searched for once.

        Links and seals cover the rows, and may be whole even if a page misstates what it holds. But
        then rows are not found where they are searched for. Raises SourceBroken.
        """

    @property
    def last_row_id(self) -> int:
        """The last id that is looked at; beyond the head only if the table contradicts it."""
        return max(self.head.last_id, self.head.last_row_id or 0)

    @property
    def span(self) -> int:
        """Number of ids from the first row to the last."""
        first = self.head.first_row_id
        return 0 if first is None else self.last_row_id - first + 1
