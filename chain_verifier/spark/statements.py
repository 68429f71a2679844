"""What statements find in a chain's database, read in Spark's workers by the driver of Python.

The statements and the login are inside the function that a worker gets: they are in no plan, and so
in no page or log of Spark.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from chain_kernel.clients.database_config import DatabaseConfig
from chain_verifier.config import CONNECTIONS_MAX, FETCH_ROWS
from chain_verifier.database_facts import flat
from chain_verifier.server import read_by_pieces
from chain_verifier.spark.table import HAS_NULL

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from chain_verifier.config import DatabaseSource

    Pieces = Iterable[tuple[int, list[Any]]]
    Decode = Callable[[Pieces], Iterator[pa.RecordBatch]]
    """Takes what statements found, a piece at a time, beside the place of the statement."""

_ARROW: Final = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "array<bigint>": pa.list_(pa.int64()),
    "array<string>": pa.list_(pa.string()),
}

_ARRAYS: Final = {
    "id": "ids bigint",
    "pid": "pids bigint",
    "key": "keys string",
    "event_time_ns": "event_times_ns bigint",
    "payload": "payloads binary",
}
"""The column of a page that holds a column of its rows, and the type of its values."""


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
    names, types = _columns_of(schema)

    def decode(pieces: Pieces) -> Iterator[pa.RecordBatch]:
        for _, found in pieces:
            columns = zip(*found, strict=True)
            arrays = [pa.array(each, kind) for each, kind in zip(columns, types, strict=True)]
            yield pa.RecordBatch.from_arrays(arrays, names)

    return decode


def _columns_of(schema: str) -> tuple[list[str], list[pa.DataType]]:
    columns = [column.split() for column in schema.split(", ")]
    return [name for name, _ in columns], [_ARROW[kind] for _, kind in columns]


def find_rows(
    spark: SparkSession,
    login: WorkerLogin,
    pages: Sequence[str],
    names: Sequence[str],
    fetch_pages: int,
) -> DataFrame:
    """Return the columns `names` of the rows of pages, and whether one of these is NULL.

    `pages` are statements that find pages, and may name the chain of each.
    """
    arrays = {name: _ARRAYS.get(name, f"{name} int").split() for name in names}
    columns = ", ".join(column for column, _ in arrays.values())
    schema = ", ".join(f"{name} {kind}" for name, (_, kind) in arrays.items())
    return find(
        spark,
        login,
        [f"SELECT {columns} FROM ({each}) AS pages" for each in pages],  # noqa: S608 - ours
        f"{schema}, {HAS_NULL} boolean",
        _row_decoder(schema),
        fetch_pages,
    )


def _row_decoder(schema: str) -> Decode:
    names, types = _columns_of(schema)

    def decode(pieces: Pieces) -> Iterator[pa.RecordBatch]:
        for _, pages in pieces:
            columns = [list[Any]() for _ in names]
            for page in pages:
                _extend(columns, page)
            arrays = [pa.array(each, kind) for each, kind in zip(columns, types, strict=True)]
            has_null = reduce(pc.or_, (array.is_null() for array in arrays))
            yield pa.RecordBatch.from_arrays([*arrays, has_null], [*names, HAS_NULL])

    return decode


def _extend(columns: Sequence[list[Any]], page: Iterable[Any]) -> None:
    """Add the rows of a page; a value that a column lacks is None, as in SQL."""
    found = [flat(values) if isinstance(values, list) else values for values in page]
    count = max(len(values) for values in found if isinstance(values, list))
    for column, values in zip(columns, found, strict=True):
        of_rows = values if isinstance(values, list) else [values] * count
        column += of_rows
        column += [None] * (count - len(of_rows))
