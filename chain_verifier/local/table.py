"""Rows of one source as plain Python reads them: page by page, never all of them at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Row = tuple[Any, ...]
"""The values of `CONTENT`; a plain tuple, since there are millions of them."""

CONTENT: Final = ("chain_id", "id", "pid", "key", "event_time_ns", "payload")
"""The columns by which two sources are compared; the same as in the other mode."""

PAGE_ROWS: Final = 10_000
"""Rows held at a time. A page of the largest usual rows (1 kB) is 10 MB."""


class LocalTable(Protocol):
    """One source, opened: its rows, read again at every use."""

    @property
    def name(self) -> str:
        """What the report calls it."""
        ...

    @property
    def has_positions(self) -> bool:
        """Whether rows have an order of their own, which must be that of the chain."""
        ...

    @property
    def span(self) -> int | None:
        """About how many ids lie between the first row and the last; None if not known."""
        ...

    def pages(
        self, ids: tuple[int, int] | None = None, *, content: bool = True
    ) -> Iterator[Sequence[Row]]:
        """Yield the rows. Raises SourceBroken when the source cannot be read to its end.

        With `ids` (the first, and the first after the range), rows outside may be left out. Without
        `content`, the last three values show only whether they are NULL.
        """
        ...

    def notes(self) -> tuple[str, ...]:
        """Return what is no fault, but should be known; complete once the rows were read."""
        ...
