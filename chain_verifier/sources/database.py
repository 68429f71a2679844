"""Rows in a chain's database: pages, about as many bytes per round trip, over one connection.

A data source reads the heads first, and pages up to them.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from msgspec import Struct

from chain_kernel.errors import ChainMissing, RetryError, RowsArchived, RowsMissing, SettingError
from chain_kernel.sql import load_sql, require_version
from chain_verifier.database_facts import SQL, filled, flat, page_ranges
from chain_verifier.server import Reading
from chain_verifier.sources.content import EVENT

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa

    from chain_verifier.sources.options import ChainOptions

_SQL: Final = load_sql("chain_verifier.sources", "chains.sql")

_BYTES: Final = 4 * 2**20
"""Stored bytes of the pages that are held at a time, unless a single one has more: about 40 MB as
Python objects."""

_PAGES: Final = 256
"""Maximum number of pages per round trip: the server looks at the size of each."""

_ARRAYS: Final = {
    "id": "ids",
    "pid": "pids",
    "key": "keys",
    "event_time_ns": "event_times_ns",
    "payload": "payloads",
}
"""The arrays of a page that hold the columns of its rows."""


_LAG_SECONDS: Final = 60.0
"""Seconds that a server that lags is waited for: a stop of the query waits as long."""

_PAUSE_SECONDS: Final = 0.25


class PageRange(Struct, frozen=True):
    """Rows of one chain: those after `after_id` up to `until_id`, in pages up to `page_id`."""

    chain_id: int
    after_id: int
    until_id: int
    page_id: int
    rows: int = 0
    """About how many it has."""


def pages_of(
    fetch: Callable[[str], list[Any]], asked: PageRange, names: Sequence[str] = EVENT
) -> Iterator[list[Any]]:
    """Yield the pages of a range, those of a round trip together, with what holds `names`.

    Rows before and after the range come with their pages. None come where pages end before the
    range does: the last list is empty then.
    """
    at_id = asked.after_id
    arrays = ", ".join(_ARRAYS[name] for name in names)
    while at_id < asked.until_id:
        pages = filled(SQL["pages"], asked.chain_id, at_id, asked.page_id, _BYTES, _PAGES)
        found = fetch(
            f"SELECT last_id, {arrays} FROM ({pages}) AS pages ORDER BY last_id"  # noqa: S608 - ours
        )
        yield found
        if not found:
            return
        at_id = found[-1]["last_id"]


def page_columns(pages: Sequence[Any], names: Sequence[str] = EVENT) -> list[list[Any]]:
    """Return columns of the rows of pages; a value that a column lacks is None, as in SQL."""
    columns: list[list[Any]] = [[] for _ in names]
    for page in pages:
        found = [flat(page[_ARRAYS[name]]) for name in names]
        count = max(map(len, found))
        for column, values in zip(columns, found, strict=True):
            column += values
            column += [None] * (count - len(values))
    return columns


class Extent(NamedTuple):
    """Which rows of a chain there are: those after one id, up to another."""

    after_id: int
    until_id: int


class DatabaseRows:
    """The chains that are read, and where each of them ends now. Implements `RangedRows`."""

    def __init__(self, options: ChainOptions) -> None:
        self._options = options

    def extents(self, known: Container[int] = ()) -> dict[int, Extent]:
        """Return the rows of each chain: after `start`, or else what is archived, up to `until`.

        One whose head is at or below `start` has none. Raises SchemaError, ConnectError, and
        ChainMissing but for `known` chains, which a server that lags does not have yet.
        """
        with ChainReading(self._options.url) as reading:
            heads = self._heads(reading, known)
        until = self._options.until
        firsts = {n: self._options.start or head["boundary_id"] for n, head in heads.items()}
        return {
            number: Extent(first, max(first, min(until, heads[number]["head_id"])))
            for number, first in firsts.items()
        }

    def ranges(self) -> list[PageRange]:
        """Return what is read now: all rows. Raises as `extents`."""
        start, until = self._options.start, self._options.until
        with ChainReading(self._options.url) as reading:
            heads = self._heads(reading)
            asked = {
                number: (max(start, head["boundary_id"]), min(until, head["head_id"]))
                for number, head in heads.items()
            }
            return self._planned(reading, heads, asked)

    def between(self, start: Mapping[int, int], end: Mapping[int, int]) -> list[PageRange]:
        """Return what is read between two offsets of a stream, once the server has it.

        A batch may be planned again, after a crash: its offsets alone count. A chain that was
        created since has no end here: its rows are of a later batch. Raises RowsArchived where rows
        between the offsets were archived, RetryError where the server lags for too long.
        """
        asked = {
            number: (start.get(number, self._options.start), last)
            for number, last in end.items()
            if self._options.chains is None or number in self._options.chains
        }
        asked = {number: ends for number, ends in asked.items() if ends[0] < ends[1]}
        if not asked:
            return []
        with ChainReading(self._options.url) as reading:
            reading.require_version()
            wanted = {number: last for number, (_, last) in asked.items()}
            found = reading.reached(wanted, _SQL["chains"], list(wanted))
            heads = {head["chain_id"]: head for head in found}
            for number, (first, last) in asked.items():
                if first < min(boundary_id := heads[number]["boundary_id"], last):
                    raise RowsArchived(number, first, boundary_id)
            return self._planned(reading, heads, asked)

    def bounded(
        self, after: Mapping[int, int], ends: Mapping[int, int], rows: int
    ) -> dict[int, int]:
        """Return `ends` that are nearer: at most so many rows of all chains are up to there.

        What was committed first comes first. Raises RetryError where the server lags for too long.
        """
        asked = {n: (after.get(n, 0), last) for n, last in ends.items() if after.get(n, 0) < last}
        if not asked:
            return dict(ends)
        columns = [*asked], *([each[i] for each in asked.values()] for i in (0, 1))
        with ChainReading(self._options.url) as reading:
            wanted = {number: last for number, (_, last) in asked.items()}
            reading.reached(wanted, _SQL["chains"], list(wanted))
            found = {
                row["chain_id"]: row["until_id"]
                for row in reading.fetch(_SQL["bounded"], *columns, rows)
            }
        # A chain that is not among them has no rows up to its end, which may be between two ids.
        near = {n: after.get(n, 0) if until is None else until for n, until in found.items()}
        return dict(ends) | near

    def read(self, ranges: Sequence[PageRange]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of ranges in their order, over one connection.

        Raises as `batches`; where rows are to be linked, RowsMissing at the first one that is not.
        """
        with ChainReading(self._options.url) as reading:
            for asked in ranges:
                rows = reading.batches(asked)
                yield from _linked(asked, rows) if self._options.is_linked else rows

    def _planned(
        self, reading: ChainReading, heads: Mapping[int, Any], ends: Mapping[int, tuple[int, int]]
    ) -> list[PageRange]:
        asked = [(n, first, last) for n, (first, last) in ends.items() if first < last]
        columns = [[each[i] for each in asked] for i in range(3)]
        of_chain: dict[int, list[Any]] = {number: [] for number, _, _ in asked}
        for part in reading.fetch(_SQL["parts"], *columns, self._options.partition_rows):
            of_chain[part["chain_id"]].append(part)
        return [
            each
            for number, first, last in asked
            for each in _cut(heads[number], of_chain[number], first, last)
        ]

    def _heads(self, reading: ChainReading, known: Container[int] = ()) -> dict[int, Any]:
        reading.require_version()
        asked = self._options.chains
        found = reading.fetch(_SQL["chains"], None if asked is None else list(asked))
        heads = {head["chain_id"]: head for head in found}
        missing = [n for n in asked or () if n not in heads and n not in known]
        if missing:
            raise ChainMissing(min(missing))
        return heads


def require_whole(rows: DatabaseRows, chain_id: int) -> Extent:
    """Return the rows of a chain none of which is archived: else no fold gives the true state.

    Raises SettingError for another chain, and as `extents`.
    """
    found = rows.extents()[chain_id]
    if found.after_id:
        expected = (
            f"all rows of chain {chain_id}, and those up to {found.after_id} were archived: "
            "orderchain.spark.replay takes both (docs/spark.md)"
        )
        raise SettingError("--chain", chain_id, expected)
    return found


def _cut(head: Any, parts: Sequence[Any], first: int, last: int) -> list[PageRange]:  # noqa: ANN401
    """Return the ranges of rows after `first` up to `last`: one for each of the `parts`."""
    ranges = page_ranges((part["until_id"] for part in parts[:-1]), first, last)
    rows = sum(part["rows"] for part in parts) // len(ranges)
    # The last row may be within a page; all other ends are those of batches.
    return [
        PageRange(head["chain_id"], max(a, first), u, head["head_id"] if u == last else u, rows)
        for a, u in ranges
    ]


def _linked(asked: PageRange, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a range, each after the one that it names as the one before.

    Raises RowsMissing, also where they end before the range does.
    """
    import numpy as np

    at_id = asked.after_id
    for rows in batches:
        ids, pids = (np.asarray(rows.column(name)) for name in ("id", "pid"))
        before = np.append(at_id, ids)
        breaks = np.flatnonzero((pids != before[:-1]) | (pids >= ids))
        if len(breaks):
            at = breaks[0]
            raise RowsMissing(asked.chain_id, int(before[at]), int(ids[at]))
        yield rows
        at_id = int(before[-1])
    if at_id != asked.until_id:
        raise RowsMissing(asked.chain_id, at_id, asked.until_id)


class ChainReading(Reading):
    """One connection, and what a data source asks over it."""

    def require_version(self) -> None:
        """Raise SchemaError where the schema is missing, or of another version."""
        versions = self.fetch(_SQL["version"])
        require_version(versions[0] if versions else None)

    def reached(self, ends: Mapping[int, int], statement: str, *values: object) -> list[Any]:
        """Return the rows of a statement with `chain_id` and `head_id`, once heads are at `ends`.

        A server may lag behind the one that was read before: a standby, or any after a fail-over.
        Raises RetryError where it still does after `_LAG_SECONDS`.
        """
        until = time.monotonic() + _LAG_SECONDS
        while True:
            found = self.fetch(statement, *values)
            heads = {each["chain_id"]: each["head_id"] for each in found}
            for number, end_id in ends.items():
                if (head_id := heads.get(number, 0)) < end_id:
                    break
            else:
                return found
            if time.monotonic() >= until:
                server = self.fetch(_SQL["server"])[0]["server"]
                raise RetryError(
                    f"chain {number}: the server {server} lags: its head is {head_id}, "
                    f"expected {end_id} or more"
                )
            time.sleep(_PAUSE_SECONDS)

    def batches(self, asked: PageRange) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a range in their order, those of a round trip at a time.

        Raises RowsArchived for rows that were archived since the range was planned, RowsMissing
        where pages end before it does, RetryError where the server lags for too long.
        """
        import numpy as np

        from chain_verifier.sources.columns import batch_facts, frame_rows, within

        number, at_id = asked.chain_id, asked.after_id
        bounds = (number, at_id, asked.until_id)
        found = self.reached({number: asked.until_id}, _SQL["batch_ends"], *bounds)
        batches = [batch for batch in found if batch["last_id"] is not None]
        ends = np.array([batch["last_id"] for batch in batches], np.int64)
        epochs = np.array([batch["epoch"] for batch in batches], np.int64)
        for pages in pages_of(self.fetch, asked):
            # A boundary is set before pages go, so it is read after them.
            boundary_id = self.fetch(filled(SQL["boundary"], number))[0]["boundary_id"]
            if at_id < boundary_id:
                raise RowsArchived(number, at_id, boundary_id)
            if not pages:
                raise RowsMissing(number, at_id, asked.until_id)
            event = page_columns(pages)
            facts = batch_facts(np.array(event[0], np.int64), ends, epochs)
            yield within(frame_rows(number, event, *facts), asked.after_id, asked.until_id)
            at_id = pages[-1]["last_id"]
