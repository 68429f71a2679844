"""Rows of chains in their database: the heads first, then pages up to them, over one connection."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from msgspec import Struct

from chain_kernel.clients.session import Session
from chain_kernel.errors import ChainMissing, RowsArchived, RowsMissing
from chain_kernel.sql import AUDITOR, load_sql, require_version
from chain_verifier.database_facts import SQL, filled, page_ranges
from chain_verifier.dataframe.columns import batch_facts, rows_of, within
from chain_verifier.runner import Runner
from chain_verifier.server import verifier_session_config

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa

    from chain_verifier.dataframe.options import ChainOptions

_SQL: Final = load_sql("chain_verifier.dataframe", "chains.sql")

_BYTES: Final = 4 * 2**20
_PAGES: Final = 256
"""Stored bytes, and pages, per round trip."""


class PageRange(Struct, frozen=True, tag=True):
    """Rows of one chain: those after `after_id` up to `until_id`, in pages up to `page_id`."""

    chain_id: int
    after_id: int
    until_id: int
    page_id: int
    rows: int
    """About how many it has."""


class Extent(NamedTuple):
    """Which rows of a chain there are: those after one id, up to another."""

    after_id: int
    until_id: int


class ChainHeads:
    """The chains that are read, and where each of them ends now."""

    def __init__(self, options: ChainOptions) -> None:
        self._options = options

    def extents(self) -> dict[int, Extent]:
        """Return the rows of each chain: after `start`, or else what is archived, up to `until`.

        One whose head is at or below `start` has none. Raises ChainMissing, SchemaError,
        ConnectError.
        """
        with Reading(self._options.url) as reading:
            return {chain["chain_id"]: self._extent(chain) for chain in self._chains(reading)}

    def _extent(self, chain: Any) -> Extent:  # noqa: ANN401 - a record
        first = self._options.start or chain["boundary_id"]
        return Extent(first, max(first, min(self._options.until, chain["last_id"])))

    def ranges(
        self, offsets: tuple[Mapping[int, int], Mapping[int, int]] | None = None
    ) -> list[PageRange]:
        """Return what is read: all rows, or those between two offsets of a stream.

        Raises as `extents`; RowsArchived where rows between the offsets were archived.
        """
        with Reading(self._options.url) as reading:
            heads = {chain["chain_id"]: chain for chain in self._chains(reading)}
            bounds = {number: self._bounds(chain, offsets) for number, chain in heads.items()}
            asked = [(number, *ends) for number, ends in bounds.items() if ends[0] < ends[1]]
            columns = [[each[i] for each in asked] for i in range(3)]
            parts = reading.fetch(_SQL["parts"], *columns, self._options.partition_rows)
        of_chain: dict[int, list[Any]] = {number: [] for number, _, _ in asked}
        for part in parts:
            of_chain[part["chain_id"]].append(part)
        return [
            each
            for number, first, last in asked
            for each in _cut(heads[number], of_chain[number], first, last)
        ]

    def _bounds(
        self,
        chain: Any,  # noqa: ANN401 - a record
        offsets: tuple[Mapping[int, int], Mapping[int, int]] | None,
    ) -> tuple[int, int]:
        number, boundary_id = chain["chain_id"], chain["boundary_id"]
        if offsets is None:
            return max(self._options.start, boundary_id), min(self._options.until, chain["last_id"])
        # A batch of a stream may be planned again, after a crash: its offsets alone count.
        # A chain that was created since has no end here: its rows are of a later batch.
        start, end = offsets
        first, last = start.get(number, self._options.start), end.get(number, 0)
        if first < min(boundary_id, last):
            raise RowsArchived(number, first, boundary_id)
        return first, last

    def _chains(self, reading: Reading) -> list[Any]:
        versions = reading.fetch(_SQL["version"])
        require_version(versions[0] if versions else None)
        asked = self._options.chains
        found = reading.fetch(_SQL["chains"], None if asked is None else list(asked))
        missing = set(asked or ()) - {chain["chain_id"] for chain in found}
        if missing:
            raise ChainMissing(min(missing))
        return found


def _cut(chain: Any, parts: Sequence[Any], first: int, last: int) -> list[PageRange]:  # noqa: ANN401
    """Return the ranges of rows after `first` up to `last`: one for each of the `parts`."""
    ranges = page_ranges((part["until_id"] for part in parts[:-1]), first, last)
    rows = sum(part["rows"] for part in parts) // len(ranges)
    # The last row may be within a page; all other ends are those of batches. This server may lag,
    # and the one that a task reads not.
    head = max(chain["last_id"], last)
    return [
        PageRange(chain["chain_id"], max(a, first), u, head if u == last else u, rows)
        for a, u in ranges
    ]


class Reading:
    """One connection, for callers without an event loop, and for those in a running one."""

    def __init__(self, url: str) -> None:
        self._session = Session(verifier_session_config(url, AUDITOR))
        self._runner = Runner()

    def __enter__(self) -> Reading:
        return self

    def __exit__(self, *error: object) -> None:
        self._runner.run(self._session.close())
        self._runner.close()

    def fetch(self, statement: str, *values: object) -> list[Any]:
        """Return the rows of a statement. Raises what `Session.fetch` raises."""
        return self._runner.run(self._session.fetch(statement, *values))

    def batches(self, asked: PageRange) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a range in their order, a page at a time.

        Raises RowsArchived for rows that were archived since the range was planned, RowsMissing
        where pages end before it does, or the server lags.
        """
        number, at_id = asked.chain_id, asked.after_id
        found = self.fetch(_SQL["batch_ends"], number, asked.after_id, asked.until_id)
        # A server that lags may answer instead: its head is of the same snapshot.
        if not found or found[0]["head_id"] < asked.until_id:
            raise RowsMissing(number, asked.after_id, asked.until_id)
        batches = [batch for batch in found if batch["last_id"] is not None]
        ends = np.array([batch["last_id"] for batch in batches], np.int64)
        epochs = np.array([batch["epoch"] for batch in batches], np.int64)
        while at_id < asked.until_id:
            given = (number, at_id, asked.page_id, _BYTES, _PAGES)
            pages = self.fetch(filled(SQL["pages"], *given))
            # A boundary is set before pages go, so it is read after them.
            boundary_id = self.fetch(filled(SQL["boundary"], number))[0]["boundary_id"]
            if at_id < boundary_id:
                raise RowsArchived(number, at_id, boundary_id)
            if not pages:
                raise RowsMissing(number, at_id, asked.until_id)
            for page in pages:
                yield _rows(asked, page, ends, epochs)
            at_id = pages[-1]["last_id"]


def _rows(asked: PageRange, page: Any, ends: Any, epochs: Any) -> pa.RecordBatch:  # noqa: ANN401
    """Return the rows of `page` that are in the range, with what their batches say."""
    columns = ("ids", "pids", "keys", "event_times_ns", "payloads")
    event = [page[name] for name in columns]
    facts = batch_facts(np.array(page["ids"], np.int64), ends, epochs)
    return within(rows_of(asked.chain_id, event, *facts), asked.after_id, asked.until_id)


def read_pages(url: str, ranges: Sequence[PageRange]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of ranges in their order, over one connection; within a worker of Spark."""
    with Reading(url) as reading:
        for asked in ranges:
            yield from reading.batches(asked)
