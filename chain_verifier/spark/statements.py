"""Statements on a chain's database, run in Spark's workers by the driver of Python.

The statements and the login are inside the function that a worker gets: they are in no plan, and so
in no page or log of Spark.
"""

from __future__ import annotations

from functools import reduce
from itertools import chain
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from chain_kernel.clients.database_config import DatabaseConfig
from chain_verifier.config import CONNECTIONS_MAX, FETCH_ROWS
from chain_verifier.server import Reading, read_by_pieces
from chain_verifier.sources.columns import ARROW_TYPES, arrays_of
from chain_verifier.sources.content import EVENT_TYPES
from chain_verifier.sources.database import page_columns, pages_of
from chain_verifier.spark.table import HAS_NULL

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from chain_verifier.config import DatabaseSource
    from chain_verifier.sources.database import PageRange

    Pieces = Iterable[tuple[int, list[Any]]]
    Decode = Callable[[Pieces], Iterator[pa.RecordBatch]]
    """Takes what statements found, a piece at a time, beside the place of the statement."""


class WorkerLogin(Struct, frozen=True):
    """As whom workers log in: as the driver would, whatever their own environment says."""

    database: DatabaseConfig
    connect_seconds: float

    @classmethod
    def of(cls, source: DatabaseSource) -> WorkerLogin:
        """Return the login of a source. Raises SettingError."""
        config = DatabaseConfig.of(source.database).for_elsewhere()
        return cls(config, source.connect_seconds)


def find(
    spark: SparkSession,
    login: WorkerLogin,
    statements: Sequence[str],
    schema: str,
    decode: Decode | None = None,
    fetch_rows: int = FETCH_ROWS,
) -> DataFrame:
    """Return what `statements` find, read over several connections, `fetch_rows` rows at a time.

    `schema` is that of the frame; without `decode` also that of what the statements find.
    """
    tasks = max(1, min(len(statements), CONNECTIONS_MAX))
    numbers = spark.range(0, len(statements), 1, tasks)
    return numbers.mapInArrow(
        _reader(login, list(statements), decode or _decoder(schema), fetch_rows), schema
    )


def _reader(
    login: WorkerLogin, statements: Sequence[str], decode: Decode, fetch_rows: int
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        numbers = [number for batch in batches for number in batch["id"].to_pylist()]
        if numbers:
            asked = {number: statements[number] for number in numbers}
            yield from decode(
                read_by_pieces(login.database, login.connect_seconds, asked, fetch_rows)
            )

    return read


def _decoder(schema: str) -> Decode:
    columns = [column.split() for column in schema.split(", ")]
    names, types = [name for name, _ in columns], [ARROW_TYPES[kind] for _, kind in columns]

    def decode(pieces: Pieces) -> Iterator[pa.RecordBatch]:
        for _, found in pieces:
            columns = zip(*found, strict=True)
            arrays = [pa.array(each, kind) for each, kind in zip(columns, types, strict=True)]
            yield pa.RecordBatch.from_arrays(arrays, names)

    return decode


def find_rows(
    spark: SparkSession,
    login: WorkerLogin,
    tasks: Sequence[Sequence[PageRange]],
    names: Sequence[str],
) -> DataFrame:
    """Return the columns `names` of the rows of pages, their chains, and whether one is NULL.

    Rows before and after a range may come with it.
    """
    schema = ", ".join(f"{name} {EVENT_TYPES[name]}" for name in ("chain_id", *names))
    numbers = spark.range(0, len(tasks), 1, max(1, min(len(tasks), CONNECTIONS_MAX)))
    reader = _row_reader(login, tasks, names)
    return numbers.mapInArrow(reader, f"{schema}, {HAS_NULL} boolean")


def _row_reader(
    login: WorkerLogin, tasks: Sequence[Sequence[PageRange]], names: Sequence[str]
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        numbers = [number for batch in batches for number in batch["id"].to_pylist()]
        with Reading(login.database, login.connect_seconds) as reading:
            for asked in chain.from_iterable(tasks[number] for number in numbers):
                for pages in pages_of(reading.fetch, asked, names):
                    arrays = arrays_of(asked.chain_id, page_columns(pages, names), names)
                    has_null = reduce(pc.or_, (array.is_null() for array in arrays.values()))
                    yield pa.RecordBatch.from_pydict({**arrays, HAS_NULL: has_null})

    return read
