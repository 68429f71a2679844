"""The rows of chains as a data source of Spark: `spark.read.format("orderchain")`.

The heads are read first, and rows up to them: what is committed later is not in the frame. Each
task reads ranges of pages over one connection, as Arrow batches. As a stream, the offset of a chain
is the id of its last row.
"""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
from msgspec import Struct
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)

from chain_kernel.clients.session import Session
from chain_kernel.errors import ChainMissing, SettingError
from chain_kernel.limits import CHAIN_ID_MAX, ID_MAX
from chain_kernel.sql import AUDITOR, load_sql, require_version
from chain_verifier.database_facts import SQL, filled, page_ranges
from chain_verifier.server import verifier_session_config

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

NAME: Final = "orderchain"

SCHEMA: Final = (
    "chain_id INT, id BIGINT, pid BIGINT, key STRING, event_time_ns BIGINT, payload BINARY, "
    "epoch BIGINT, is_batch_end BOOLEAN"
)
_ARROW: Final = pa.schema(
    [
        ("chain_id", pa.int32()),
        ("id", pa.int64()),
        ("pid", pa.int64()),
        ("key", pa.string()),
        ("event_time_ns", pa.int64()),
        ("payload", pa.binary()),
        ("epoch", pa.int64()),
        ("is_batch_end", pa.bool_()),
    ]
)

_SQL: Final = load_sql("chain_verifier.dataframe", "chains.sql")

_PARTITION_ROWS: Final = 1_000_000
"""Rows of a task: few seconds of work, and what a failed task repeats."""

_BYTES: Final = 4 * 2**20
_PAGES: Final = 256
"""Stored bytes, and pages, per round trip."""

_RANGE: Final = re.compile(r"(\d{1,10})(?:-(\d{1,10}))?")
_KNOWN: Final = frozenset({"url", "path", "chains", "start", "until", "partitionrows"})


class ChainOptions(Struct, frozen=True, kw_only=True):
    """What is read, from the options of a reader."""

    url: str
    """The database: a login that is a member of `auditor` is enough."""
    chains: tuple[int, ...] | None
    """None: all that there are."""
    start: int
    """Rows after this id."""
    until: int
    """Rows up to this id."""
    partition_rows: int

    @classmethod
    def of(cls, given: Mapping[str, str]) -> ChainOptions:
        """Return the options `given`, whose names Spark compares in any case.

        Raises SettingError for one that is missing, unknown or no number.
        """
        options = {name.lower(): value for name, value in given.items()}
        if unknown := sorted(options.keys() - _KNOWN):
            raise SettingError("option", unknown[0], "url, chains, start, until, partitionRows")
        if not options.get("url"):
            raise SettingError("url", None, "the database, as postgresql://HOST/NAME")
        chains = options.get("chains") or options.get("path") or "all"
        return cls(
            url=options["url"],
            chains=None if chains == "all" else tuple(chain_numbers(chains)),
            start=_number(options, "start", 0),
            until=_number(options, "until", ID_MAX),
            partition_rows=max(_number(options, "partitionrows", _PARTITION_ROWS), 1),
        )


def chain_numbers(text: str) -> list[int]:
    """Return the chains that `text` names, such as `1,4-6`. Raises SettingError."""
    found = set[int]()
    for part in text.split(","):
        match = _RANGE.fullmatch(part.strip())
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if not 0 < first <= last <= CHAIN_ID_MAX:
            raise SettingError("chains", text, "numbers and ranges such as 1,4-6, or all")
        found.update(range(first, last + 1))
    return sorted(found)


class PageRange(Struct, frozen=True):
    """Rows of one chain: those after `after_id` up to `until_id`, in pages up to `page_id`."""

    chain_id: int
    after_id: int
    until_id: int
    page_id: int


class PageRanges(InputPartition):
    """What one task reads, over one connection."""

    def __init__(self, ranges: Sequence[PageRange]) -> None:
        super().__init__(None)
        self.ranges = list(ranges)


class ChainHeads:
    """The chains that are read, and where each of them ends now."""

    def __init__(self, options: ChainOptions) -> None:
        self._options = options

    def heads(self) -> dict[int, int]:
        """Return the last id of each chain. Raises ChainMissing, SchemaError, ConnectError."""
        with Reading(self._options.url) as reading:
            return {chain["chain_id"]: chain["last_id"] for chain in self._chains(reading)}

    def ranges(
        self, after: Mapping[int, int] | None = None, until: Mapping[int, int] | None = None
    ) -> list[PageRanges]:
        """Return what the tasks read: all rows, or those between two offsets of a stream."""
        options = self._options
        with Reading(options.url) as reading:
            found: list[tuple[PageRange, int]] = []
            for chain in self._chains(reading):
                number = chain["chain_id"]
                first = max(options.start, chain["boundary_id"], (after or {}).get(number, 0))
                last = min(options.until, (until or {}).get(number, chain["last_id"]))
                if first < last:
                    found += self._cut(reading, chain, first, last)
        return [PageRanges(ranges) for ranges in _packed(found, options.partition_rows)]

    def _chains(self, reading: Reading) -> list[Any]:
        versions = reading.fetch(_SQL["version"])
        require_version(versions[0] if versions else None)
        asked = self._options.chains
        found = reading.fetch(_SQL["chains"], None if asked is None else list(asked))
        missing = set(asked or ()) - {chain["chain_id"] for chain in found}
        if missing:
            raise ChainMissing(min(missing))
        return found

    def _cut(
        self,
        reading: Reading,
        chain: Any,  # noqa: ANN401 - a record
        first: int,
        last: int,
    ) -> list[tuple[PageRange, int]]:
        """Return ranges of one chain, each with about how many rows it has."""
        number, rows = chain["chain_id"], chain["rows"]
        count = rows // self._options.partition_rows + 1
        ends: list[int] = []
        if count > 1:
            parts = reading.fetch(filled(SQL["parts"], number, count, first))
            ends = [part["until_id"] for part in parts]
        ranges = page_ranges(ends, first, last)
        return [
            # The last row may be within a page; all other ends are those of batches.
            (
                PageRange(number, max(a, first), u, chain["last_id"] if u == last else u),
                rows // count,
            )
            for a, u in ranges
        ]


def _packed(ranges: Iterable[tuple[PageRange, int]], rows: int) -> Iterator[list[PageRange]]:
    """Yield tasks: small chains share one, so that a thousand of them are no thousand tasks."""
    task: list[PageRange] = []
    held = 0
    for each, count in ranges:
        if task and held + count > rows:
            yield task
            task, held = [], 0
        task.append(each)
        held += count
    if task:
        yield task


class Reading:
    """One connection, for callers without an event loop."""

    def __init__(self, url: str) -> None:
        self._session = Session(verifier_session_config(url, AUDITOR))
        self._runner = asyncio.Runner()

    def __enter__(self) -> Reading:
        return self

    def __exit__(self, *error: object) -> None:
        self._runner.run(self._session.close())
        self._runner.close()

    def fetch(self, statement: str, *values: object) -> list[Any]:
        """Return the rows of a statement. Raises what `Session.fetch` raises."""
        return self._runner.run(self._session.fetch(statement, *values))

    def batches(self, asked: PageRange) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a range in their order, a page at a time."""
        number, at_id = asked.chain_id, asked.after_id
        found = self.fetch(_SQL["batch_ends"], number, asked.after_id, asked.until_id)
        ends = np.array([batch["last_id"] for batch in found], np.int64)
        epochs = np.array([batch["epoch"] for batch in found], np.int64)
        while at_id < asked.until_id:
            pages = self.fetch(filled(SQL["pages"], number, at_id, asked.page_id, _BYTES, _PAGES))
            if not pages:
                return
            for page in pages:
                yield _rows(asked, page, ends, epochs)
            at_id = pages[-1]["last_id"]


def _rows(asked: PageRange, page: Any, ends: Any, epochs: Any) -> pa.RecordBatch:  # noqa: ANN401
    """Return the rows of `page` that are in the range, with what their batches say."""
    ids = np.array(page["ids"], np.int64)
    at = np.searchsorted(ends, ids)
    known = at < len(ends)
    at = np.where(known, at, 0)
    # A row that is in no batch is there without one: a check finds it.
    epoch = pa.array(epochs[at] if len(ends) else ids, pa.int64(), mask=~known)
    is_end = known & (ends[at] == ids) if len(ends) else known
    columns = [
        pa.array(np.full(len(ids), asked.chain_id, np.int32)),
        pa.array(ids),
        pa.array(page["pids"], pa.int64()),
        pa.array(page["keys"], pa.string()),
        pa.array(page["event_times_ns"], pa.int64()),
        pa.array(page["payloads"], pa.binary()),
        epoch,
        pa.array(is_end),
    ]
    rows = pa.RecordBatch.from_arrays(columns, schema=_ARROW)
    first, last = np.searchsorted(ids, [asked.after_id, asked.until_id], side="right")
    return rows.slice(first, last - first)


def _read(url: str, partition: PageRanges) -> Iterator[pa.RecordBatch]:
    """Read what one task is to read; within a worker of Spark."""
    with Reading(url) as reading:
        for asked in partition.ranges:
            for rows in reading.batches(asked):
                if rows.num_rows:
                    yield rows


class ChainReader(DataSourceReader):
    """Reads chains up to where they end when the frame is planned."""

    def __init__(self, options: ChainOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        """Return the ranges of pages, after the heads were read."""
        # Spark reads without a partition would be one read of nothing in particular.
        return ChainHeads(self._options).ranges() or [PageRanges([])]

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:  # noqa: ANN401 - a PageRanges
        """Yield the rows of one partition in the order of their chains and ids."""
        return _read(self._options.url, partition)


class ChainStreamReader(DataSourceStreamReader):
    """Reads committed rows as they come. An offset is the last id of each chain."""

    def __init__(self, options: ChainOptions) -> None:
        self._options = options

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        """Return where the stream begins: after `start`."""
        return dict.fromkeys(self.latestOffset(), self._options.start)

    def latestOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        """Return where the chains end now."""
        heads = ChainHeads(self._options).heads()
        return {str(number): min(last, self._options.until) for number, last in heads.items()}

    def partitions(self, start: Mapping[str, int], end: Mapping[str, int]) -> Sequence[Any]:
        """Return the ranges of pages between two offsets."""
        after, until = (
            {int(number): last for number, last in offset.items()} for offset in (start, end)
        )
        return ChainHeads(self._options).ranges(after, until) or [PageRanges([])]

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:  # noqa: ANN401 - a PageRanges
        """Yield the rows of one partition in the order of their chains and ids."""
        return _read(self._options.url, partition)


class ChainSource(DataSource):
    """Chains in their database, by `spark.read` and `spark.readStream`.

    Options: `url` (the database), `chains` (such as `1,4-6`, default all; also as the path),
    `start` and `until` (ids: rows after the one, up to the other), `partitionRows`.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return NAME

    def schema(self) -> str:
        """Return the columns."""
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a frame. Raises SettingError for bad options."""
        del schema
        return ChainReader(ChainOptions.of(self.options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's
        """Return the reader of a stream. Raises SettingError for bad options."""
        del schema
        return ChainStreamReader(ChainOptions.of(self.options))


def _number(options: Mapping[str, str], name: str, default: int) -> int:
    text = options.get(name, str(default))
    if not (text.isascii() and text.isdigit() and int(text) <= ID_MAX):
        raise SettingError(name, text, f"a whole number from 0 to {ID_MAX}")
    return int(text)


def register(spark: SparkSession) -> None:
    """Make the format `orderchain` known to `spark`, also to a session over Connect."""
    spark.dataSource.register(ChainSource)
