"""Parquet that others may have written, read in bounded memory: sizes are looked at first.

A few bytes of a compressed page, or of a place in a dictionary, may stand for gigabytes.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from chain_kernel.errors import InputError
from chain_kernel.limits import PAYLOAD_BYTES_MAX
from chain_kernel.text import reason_of
from chain_verifier.places import UrlPlace, open_to_read

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from chain_verifier.places import Place

PAGE_ROWS: Final = 1_000
"""Rows held at a time: at most 256 MiB of the largest payloads. 10,000 rows are no faster."""

COLUMN_BYTES_MAX: Final = 256 * 1024 * 1024
"""Bytes of one column in one row group, before compression: no page of it has more. A usual writer
begins a new row group before that."""

_BUFFER_BYTES: Final = 4096

_OVERHEAD_BYTES: Final = 64
"""Bytes of a value beside its own, at most, and of an empty column."""


def rows_in_group(largest: int) -> int:
    """Return how many rows a writer may put into a row group, given the bytes of the largest value.

    Half of the bound is left to the headers of pages, which repeat some values.
    """
    return max(1, COLUMN_BYTES_MAX // 2 // (largest + _OVERHEAD_BYTES))


@contextmanager
def open_parquet(path: Place, names: Sequence[str] | None = None) -> Iterator[Any]:
    """Open a regular file, of which only the columns `names` are read; None: all.

    Raises OSError and ArrowException; InputError for sizes, as its footer names them, that are too
    large.
    """
    open_to_read(path).close()
    with _only_arrows_errors():
        opened = pq.ParquetFile(_input(path), page_checksum_verification=True)
    with opened as file:
        with _only_arrows_errors():
            _require_columns(path, file)
            for group in range(file.num_row_groups):
                found = file.metadata.row_group(group)
                for column in map(found.column, range(found.num_columns)):
                    if names is None or column.path_in_schema in names:
                        _check_column(path, group, column)
        yield file


@contextmanager
def _only_arrows_errors() -> Iterator[None]:
    """Raise as ArrowInvalid what pyarrow itself leaves to Python.

    No such column, or two; a name or a text that is no UTF-8; a time that Python has no value for.
    """
    try:
        yield
    except (KeyError, UnicodeDecodeError, OverflowError) as error:
        raise pa.ArrowInvalid(reason_of(error)) from error


def _input(path: Place) -> Any:  # noqa: ANN401 - pyarrow has no types
    return path.native() if isinstance(path, UrlPlace) else path


def _require_columns(path: Place, file: Any) -> None:  # noqa: ANN401 - as above
    """Raise ArrowException or OSError for columns of which the footer says what cannot be.

    Asked for their sizes, pyarrow would end the process. So its reader is asked for no rows first,
    by a buffer: without one it fetches whole columns before the first row.
    """
    with pq.ParquetFile(_input(path), metadata=file.metadata, buffer_size=_BUFFER_BYTES) as probe:
        for group in range(file.num_row_groups):
            for _ in probe.reader.iter_batches(0, [group], use_threads=False):
                pass


def _check_column(path: Place, group: int, column: Any) -> None:  # noqa: ANN401 - pyarrow has no types
    size, name = column.total_uncompressed_size, column.path_in_schema
    of_values = (column.num_values + 1) * (PAYLOAD_BYTES_MAX + _OVERHEAD_BYTES)
    if size > min(COLUMN_BYTES_MAX, of_values):
        expected = f"{column.num_values} values of at most {PAYLOAD_BYTES_MAX} bytes each"
        if of_values > COLUMN_BYTES_MAX:
            expected = f"at most {COLUMN_BYTES_MAX} in a row group"
        raise _too_large(path, f"column {name} has {size} bytes, expected {expected}")
    is_text = column.physical_type == "BYTE_ARRAY"
    if is_text and column.has_dictionary_page and size > PAYLOAD_BYTES_MAX:
        # Its values are stored once, and read as often as a row names them.
        with pq.ParquetFile(_input(path), read_dictionary=[name]) as file:
            for batch in file.iter_batches(1, row_groups=[group], columns=[name]):
                _check_values(path, name, batch.column(0).dictionary)
                break


def checked_batches(
    path: Place,
    file: Any,  # noqa: ANN401 - as above
    names: Sequence[str],
) -> Iterator[Any]:
    """Yield some columns, in this order, page by page. Raises as `open_parquet`."""
    for batch in file.iter_batches(PAGE_ROWS, columns=list(names)):
        with _only_arrows_errors():
            found = batch.select(list(names))
            for name, column in zip(names, found.columns, strict=True):
                _check_values(path, name, column)
        yield found


def parquet_pages(
    path: Place,
    file: Any,  # noqa: ANN401 - as above
    names: Sequence[str],
) -> Iterator[list[list[Any]]]:
    """Yield the values of some columns, page by page. Raises as `open_parquet`."""
    for batch in checked_batches(path, file, names):
        with _only_arrows_errors():
            values = [column.to_pylist() for column in batch.columns]
        yield values


def _check_values(path: Place, name: str, values: Any) -> None:  # noqa: ANN401 - as above
    if pa.types.is_dictionary(values.type):
        values = values.dictionary
    if values.type in (pa.string_view(), pa.binary_view()):
        values = values.cast(pa.large_binary())
    kinds = (pa.binary(), pa.large_binary(), pa.string(), pa.large_string())
    size = pc.max(pc.binary_length(values)).as_py() if values.type in kinds else None
    if size is not None and size > PAYLOAD_BYTES_MAX:
        expected = f"at most {PAYLOAD_BYTES_MAX}"
        raise _too_large(path, f"a value of column {name} has {size} bytes, expected {expected}")


def _too_large(path: Place, reason: str) -> InputError:
    return InputError("parquet", path, f"Parquet that can be read ({reason})")
