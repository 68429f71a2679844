"""What every source of a frame's rows does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa


class RowRange(Protocol):
    """Rows that are read by themselves, maybe on another machine; it can be pickled."""

    @property
    def rows(self) -> int:
        """About how many rows it has."""
        ...


class RowSource(Protocol):
    """The rows of chains in one kind of source, up to where each ended at one time."""

    def ranges(self) -> Sequence[RowRange]:
        """Return what is read. Raises RefusedError where nothing can be read."""
        ...

    def read(self, ranges: Sequence[Any]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of some of its ranges, as `sources.columns` has them."""
        ...
