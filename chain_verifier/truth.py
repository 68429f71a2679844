"""The chain in its database: what either mode asks of it, beside the rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from chain_verifier.frame_reading import FrameKeys


class DatabaseHead(Struct, frozen=True, kw_only=True):
    """Where a chain stood at one instant."""

    last_id: int
    """head_persisted; 0 for an empty chain."""
    first_row_id: int | None
    last_row_id: int | None
    """The lowest and the highest id in the table; None when it holds no row of the chain."""
    rows_counted: int
    """The rows that the commits of the chain counted."""
    seal: bytes
    """The seal after the last batch."""
    epoch: int
    published_id: int
    """head_published, as far as a commit has told of it."""
    topic: str
    topic_partition: int
    database_id: str


class Truth(ABC):
    """One chain in PostgreSQL, opened: its head was read before anything else."""

    name: str
    head: DatabaseHead

    @abstractmethod
    def head_now(self) -> int:
        """Read head_persisted once more. Raises SourceBroken."""

    @abstractmethod
    def skips(self) -> list[tuple[int, int]]:
        """Return the ranges (after, until] that were never published. Raises SourceBroken."""

    @abstractmethod
    def seal_at(self, last_id: int) -> bytes | None:
        """Return the seal after the batch that ends with `last_id`; None if none does."""

    @abstractmethod
    def frame_keys(self) -> FrameKeys:
        """Return the keys of all terms that there are by now. Raises SourceBroken."""

    @property
    def last_row_id(self) -> int:
        """The last id that is looked at; beyond the head only if the table contradicts it."""
        return max(self.head.last_id, self.head.last_row_id or 0)

    @property
    def span(self) -> int:
        """How many ids lie between the first row and the last."""
        first = self.head.first_row_id
        return 0 if first is None else self.last_row_id - first + 1
