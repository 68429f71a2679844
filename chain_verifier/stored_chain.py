"""The chain in its database, read in plain Python over one connection, in the order of ids."""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING, Any, Final

from chain_verifier.checks.buckets import Bucket, is_one_path, whole_path
from chain_verifier.checks.neighbours import first_of_each_kind
from chain_verifier.database_facts import (
    SQL,
    DatabaseFacts,
    ends_by_size,
    filled,
    page_ranges,
)
from chain_verifier.findings import Finding, Findings, Kind
from chain_verifier.server import Reading
from chain_verifier.sources.database import PageRange, page_columns, pages_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from chain_verifier.checks.buckets import Horizon
    from chain_verifier.config import DatabaseSource
    from chain_verifier.sources.content import Row

_BYTES: Final = 4 * 2**20
"""Stored bytes of the batches that are held at a time, unless a single one has more."""

_BATCHES: Final = 1_000
"""Batches whose sizes are read at once."""

_COMPARED_ROWS: Final = 1_000_000
"""Rows that the server compares in one statement: this takes one second."""


class StoredChain(DatabaseFacts):
    """The rows of one chain after `start`, up to the last one that existed when the head was read.

    Opening it reads the head, and raises ChainMissing, SchemaError or ConnectError. Each look is a
    separate statement, so that no long snapshot slows the sequencer; pages below the head no longer
    change. `close` ends the connection.
    """

    is_sorted = False

    def __init__(self, source: DatabaseSource, chain_id: int, start: int = 0) -> None:
        super().__init__(source.name, chain_id, start)
        self._reading = Reading(source.database, source.connect_seconds)
        try:
            self.head = self._read_head()
        except BaseException:
            self.close()
            raise

    def _ask(self, statement: str) -> list[Any]:
        return self._reading.fetch(statement)

    def _fetch_range(
        self, name: str, ids: str, within: tuple[int, int], *values: bool
    ) -> list[Any]:
        """Return what a statement of both modes finds for `ids` in a range (after, until]."""
        after_id, until_id = within
        statement = filled(SQL[name], self._chain_id, *values)
        return self._ask(
            f"SELECT * FROM ({statement}) AS {name}"  # noqa: S608 - constants and numbers
            f" WHERE {ids} > {after_id} AND {ids} <= {until_id} ORDER BY {ids}"
        )

    def sealed(self) -> Iterator[Any]:
        """Yield the batches up to the head in the order of ids, each with what is stored of it.

        Raises SourceBroken.
        """
        after_id = -1
        while True:
            with self._as_broken():
                sizes = self._fetch("sealed_sizes", after_id, self.head.last_id, _BATCHES)
            if not sizes:
                return
            for until_id in ends_by_size(sizes, _BYTES):
                with self._as_broken():
                    found = self._fetch_range("sealed", "id", (after_id, until_id))
                yield from found
                after_id = until_id

    # -- pages ---------------------------------------------------------------------------------

    def whole(self, horizon: Horizon) -> Bucket | None:
        """Return all rows as one bucket if they are one path from start to head, and nothing else.

        The server compares the rows of a page with each other; this method compares each page with
        the next. None means that this is not proven, also without a row. Raises SourceBroken.
        """
        at_id, rows = horizon.start, 0
        first_id: int | None = None
        for page in self._by_ranges("edges"):
            if not page["is_path"] or page["pid"] != at_id or page["first_id"] <= horizon.start:
                return None
            at_id, rows = page["last_id"], rows + page["rows"]
            first_id = page["first_id"] if first_id is None else first_id
        if first_id is None:
            return None
        bucket = whole_path(rows, horizon.start, first_id, at_id)
        return bucket if is_one_path([bucket], horizon) else None

    def page_faults(self) -> Findings:
        """Return what is wrong with pages as such, the first of each kind; searched for once.

        Raises SourceBroken.
        """
        if self._faults is None:
            self._faults = first_of_each_kind(
                Finding(
                    kind=Kind(row["kind"]),
                    source=self.name,
                    id=row["id"],
                    until_id=row["until_id"],
                    ids=tuple(row["ids"] or ()),
                    columns=tuple(row["columns"] or ()),
                    after_id=row["after_id"],
                    count=row["count"],
                )
                for row in self._by_ranges("page_faults")
            )
        return self._faults

    def _by_ranges(self, name: str) -> Iterator[Any]:
        """Yield the results of a statement that compares the rows of pages, in their order."""
        parts = self.head.rows_counted // _COMPARED_ROWS + 1
        with self._as_broken():
            ends = [part["until_id"] for part in self._fetch("parts", parts, self._start)]
        for within in page_ranges(ends, self._start, self.last_row_id):
            with self._as_broken():
                found = self._fetch_range(name, "last_id", within, self.head.has_rules)
            yield from found

    def pages(self, after_id: int = 0) -> Iterator[Sequence[Row]]:
        """Yield the rows of some pages at a time, up to the last one when the head was read.

        Rows up to `after_id` come with their pages; all rows come if pages misstate their content.
        """
        at_id, until_id = page_ranges((), self._start, self.last_row_id)[0]
        if after_id > self._start and not self.page_faults().total:
            at_id = after_id
        asked = PageRange(self._chain_id, at_id, until_id, until_id)
        with self._as_broken():
            for pages in pages_of(self._ask, asked):
                yield list(zip(repeat(self._chain_id), *page_columns(pages), strict=False))

    def notes(self) -> tuple[str, ...]:
        """Return nothing: a table has no end that could be torn."""
        return ()

    def close(self) -> None:
        """Close the connection; no statement runs any more."""
        self._reading.close()
