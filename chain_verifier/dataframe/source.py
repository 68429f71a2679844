"""The rows of chains as a data source of Spark: `spark.read.format("orderchain")`.

Where each chain ends is read first, and rows up to there: what comes later is not in the frame.
As a stream, the offset of a chain is the id of its last row. Beside these, an offset says where the
rows of each chain began when it was logged: Spark logs where a first batch ends, and not its start.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)

from chain_kernel.errors import SettingError
from chain_verifier.sources.archive import ArchiveRows
from chain_verifier.sources.columns import SCHEMA
from chain_verifier.sources.database import DatabaseRows
from chain_verifier.sources.options import ChainOptions
from chain_verifier.sources.topic import TopicRows
from chain_verifier.spark.shipping import on_driver, ship

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from chain_verifier.sources.columns import RangedRows, RowRange

NAME: Final = "orderchain"

_ADMISSION: Final = "pyspark.sql.streaming.datasource"
BOUNDS_BATCHES: Final = find_spec(_ADMISSION) is not None
"""True from PySpark 4.2 on: a source may bound the batches of a stream."""

_SOURCES: Final[Mapping[str, Callable[[ChainOptions], RangedRows]]] = {
    "database": DatabaseRows,
    "topic": TopicRows,
    "archive": ArchiveRows,
}

_LIMIT: Final = "maxRowsPerTrigger"
_BEGINS: Final = "begins"
"""Name, in a stream's offset, of the place at which the rows of the chains began."""


class Ranges(InputPartition):
    """Rows that one task reads."""

    def __init__(self, ranges: Sequence[RowRange]) -> None:
        super().__init__(None)
        self.ranges = list(ranges)


def _packed(ranges: Iterable[RowRange], rows: int) -> list[Ranges]:
    """Return tasks: small chains share one, so that a thousand of them are no thousand tasks."""
    tasks: list[Ranges] = []
    held = 0
    for each in ranges:
        if not tasks or held + each.rows > rows:
            tasks.append(Ranges([]))
            held = 0
        tasks[-1].ranges.append(each)
        held += each.rows
    # Spark reads without a partition would be one read of nothing in particular.
    return tasks or [Ranges([])]


def _read(options: ChainOptions, partition: Ranges) -> Iterator[pa.RecordBatch]:
    """Read what one task is to read; within a worker of Spark."""
    found = _SOURCES[options.kind](options).read(partition.ranges)
    return (rows for rows in found if rows.num_rows)


class ChainReader(DataSourceReader):
    """Reads chains up to where they end when the frame is planned."""

    def __init__(self, options: ChainOptions) -> None:
        if options.trigger_rows is not None:
            raise SettingError(_LIMIT, options.trigger_rows, "none: spark.read has no triggers")
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        """Return what the tasks read, after the heads were read."""
        found = _SOURCES[self._options.kind](self._options).ranges()
        return _packed(found, self._options.partition_rows)

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:  # noqa: ANN401 - a Ranges
        """Yield the rows of one partition in the order of their chains and ids."""
        return _read(self._options, partition)


class ChainStreamReader(DataSourceStreamReader):
    """Reads committed rows as they come: after `start`, or else after rows that are archived."""

    def __init__(self, options: ChainOptions) -> None:
        if options.kind != "database":
            raise SettingError("source", options.source, "database, for a stream")
        if options.trigger_rows is not None and not BOUNDS_BATCHES:
            raise SettingError(_LIMIT, options.trigger_rows, "none before PySpark 4.2")
        self._options = options
        # The highest that were seen of each chain: a server that answers later may lag.
        self._ends: dict[str, int] = {}
        self._begins: dict[str, int] = {}
        # Where a query that reads what there is, and no more, ends.
        self._targets: dict[str, int] | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return that no chain was read: a first batch begins where its end says.

        Spark asks again when it plans a first batch that failed once more. Rows may have been
        archived since.
        """
        return {}

    def getDefaultReadLimit(self) -> Any:  # noqa: ANN401, N802 - Spark's, from 4.2 on
        """Return the most rows of a batch."""
        rows, admission = self._options.trigger_rows, import_module(_ADMISSION)
        return admission.ReadAllAvailable() if rows is None else admission.ReadMaxRows(rows)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's, from 4.2 on
        """Read up to where the chains end now, however many batches that takes."""
        self._look()
        self._targets = dict(self._ends)

    def latestOffset(  # noqa: N802 - Spark's name
        self,
        start: Mapping[str, Any] | None = None,
        limit: Any = None,  # noqa: ANN401 - a ReadLimit
    ) -> dict[str, Any]:
        """Return where the next batch ends, and where the chains begin; never less than before.

        Before PySpark 4.2 it is where the chains end now. After a restart Spark first asks
        `partitions` for what it logged last, from there to there.
        """
        self._look()
        ends = self._ends if self._targets is None else self._targets
        after = self._begins | {at: last for at, last in (start or {}).items() if at != _BEGINS}
        # A server that was asked for targets may have lagged behind what was logged before.
        ends = {number: max(last, after.get(number, 0)) for number, last in ends.items()}
        rows = getattr(limit, "max_rows", None)
        if rows is not None:
            near = DatabaseRows(self._options).bounded(_numbered(after), _numbered(ends), rows)
            ends = {str(number): last for number, last in near.items()}
        return ends | {_BEGINS: dict(self._begins)}

    def _look(self) -> None:
        extents = DatabaseRows(self._options).extents(set(_numbered(self._ends)))
        _raise_to(self._ends, {str(number): rows.until_id for number, rows in extents.items()})
        _raise_to(self._begins, {str(number): rows.after_id for number, rows in extents.items()})

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> Sequence[Any]:
        """Return the ranges of pages between two offsets; a chain that is not in `start` begins
        where `end` says. Waits for a server that lags.

        Raises RowsArchived where rows between them were archived: a stream never steps over rows.
        Raises RetryError for a server that lags for too long.
        """
        after, until = (
            {number: last for number, last in offset.items() if number != _BEGINS}
            for offset in (start, end)
        )
        for offset, ends in ((start, after), (end, until)):
            _raise_to(self._ends, ends)
            _raise_to(self._begins, offset.get(_BEGINS, {}))
        offsets = _numbered(end.get(_BEGINS, {}) | after), _numbered(until)
        return _packed(DatabaseRows(self._options).between(*offsets), self._options.partition_rows)

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:  # noqa: ANN401 - a Ranges
        """Yield the rows of one partition in the order of their chains and ids."""
        return _read(self._options, partition)


if BOUNDS_BATCHES:
    import_module(_ADMISSION).SupportsTriggerAvailableNow.register(ChainStreamReader)


def _raise_to(highest: dict[str, int], seen: Mapping[str, int]) -> None:
    highest |= {number: max(last, highest.get(number, 0)) for number, last in seen.items()}


def _numbered(offset: Mapping[str, int]) -> dict[int, int]:
    return {int(number): last for number, last in offset.items()}


class ChainSource(DataSource):
    """Chains in their database, on their topics or in an archive; by `spark.read`.

    Options: `source` (`database`, `topic`, `topic:NAME`, `archive:PLACE`), `url` (the database),
    `kafka` (the brokers, with `kafka.FIELD` for TLS and logins), `chains` (such as `1,4-6`, default
    all; also as the path), `start` and `until` (ids: rows after the one, up to the other),
    `partitionRows`, `linked` (`true`: rows of the database that do not follow each other are
    refused). By `spark.readStream`, the database alone, with `maxRowsPerTrigger` (from PySpark 4.2
    on).
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


def register(spark: SparkSession) -> None:
    """Make the format `orderchain` known to `spark`, also to a session over Connect.

    Sends this package's code to workers elsewhere. No filter of a query reaches the source: Spark
    4.1 to 4.3 would keep it for every later query of the frame.
    """
    ship(spark)
    with on_driver(spark):
        spark.dataSource.register(ChainSource)
