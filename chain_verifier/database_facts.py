"""The chain in its database: what both modes read from it, besides the rows."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from chain_kernel.sql import load_sql, require_version

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from chain_verifier.checks.topic_frames import FrameKeys
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
    """Where rows end that were archived and detached; 0 if none were."""
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
    return DatabaseHead(**(known | {"seal": bytes(row["seal"])}))


def filled(statement: str, *values: int | bool | Sequence[int]) -> str:
    """Return `statement` with `values` for `$1`, `$2`, ...: the first is the chain's number, or
    those of several.

    The values become constants, so that PostgreSQL plans only for the partitions of this chain; and
    Spark cannot bind values. They are whole numbers, booleans and sequences of numbers: nothing in
    them needs quoting.
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


class DatabaseFacts(ABC):
    """One chain in PostgreSQL, opened: its head was read before anything else."""

    has_positions: Final = False
    """The rows of a table have no order of their own."""
    may_lack: Final = ()
    name: str
    head: DatabaseHead

    @abstractmethod
    def head_now(self) -> int:
        """Read head_persisted once more. Raises SourceBroken."""

    @abstractmethod
    def boundary_now(self) -> int:
        """Read once more where archived rows end. Raises SourceBroken."""

    @abstractmethod
    def skips(self) -> list[tuple[int, int]]:
        """Return the ranges (after, until] that were never published. Raises SourceBroken."""

    @abstractmethod
    def seal_at(self, last_id: int) -> bytes | None:
        """Return the seal after the batch that ends with `last_id`; None if none does."""

    @abstractmethod
    def frame_keys(self) -> FrameKeys:
        """Return the keys of all terms that exist by now. Raises SourceBroken."""

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
        """How many ids lie between the first row and the last."""
        first = self.head.first_row_id
        return 0 if first is None else self.last_row_id - first + 1
