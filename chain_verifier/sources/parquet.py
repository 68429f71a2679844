"""Parquet: rows with the columns of `chain_event`, read by row groups.

The same files are accepted as by Spark: values that are coded by a dictionary, and the chain's
number in the name of a folder, `chain_id=7`, instead of in a column.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa

from chain_kernel.errors import InputError, SourceBroken
from chain_kernel.limits import PAYLOAD_BYTES_MAX
from chain_kernel.text import reason_of
from chain_verifier.sources.bounded_parquet import open_parquet, parquet_pages
from chain_verifier.sources.content import CONTENT, EVENT_TYPES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from chain_verifier.config import ParquetSource
    from chain_verifier.sources.content import Row


CHAIN_FOLDER: Final = "chain_id="
"""Prefix of the name of a folder of Parquet that holds the rows of the chain it names."""

MIXED_FOLDERS: Final = f"not every file is in a folder {CHAIN_FOLDER}N"

_ALSO_FITTING: Final = {
    "chain_id": {"bigint", "smallint", "tinyint"},
    "id": {"int"},
    "pid": {"int"},
}
"""Types that hold the same values."""

_CHAIN_ID: Final = CONTENT[0]

_KINDS: Final = {
    pa.int8(): "tinyint",
    pa.int16(): "smallint",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.uint8(): "smallint",
    pa.uint16(): "int",
    pa.uint32(): "bigint",
    pa.string(): "string",
    pa.large_string(): "string",
    pa.string_view(): "string",
    pa.binary(): "binary",
    pa.large_binary(): "binary",
    pa.binary_view(): "binary",
}
"""The allowed types, under the names that both modes use in their messages."""

_NO_PARTITION: Final = "__HIVE_DEFAULT_PARTITION__"
"""The value in the name of a folder whose rows have none."""


def is_hidden(name: str) -> bool:
    """Return whether Spark leaves out a file or folder of this name: its own, or half a copy."""
    is_own = name.startswith(".") or (name.startswith("_") and "=" not in name)
    return is_own or name.endswith("._COPYING_")


def require_columns(source: str, found: Mapping[str, str]) -> None:
    """Raise InputError unless Parquet with the columns `found`, by type, has all that rows have."""
    for name, kind in EVENT_TYPES.items():
        if found.get(name) not in {kind} | _ALSO_FITTING.get(name, set()):
            raise InputError(f"{source}, column {name}", found.get(name), f"the type {kind}")


class ParquetRows:
    """The rows of one file or folder. The order of rows means nothing here: only ids count."""

    has_positions: Final = False
    span = None
    is_sorted = False
    may_lack = ()

    def __init__(self, source: ParquetSource) -> None:
        self.name = source.name
        try:
            self._files = _files(Path(source.path))
            for found in self._files:
                with open_parquet(found.path, CONTENT) as file:
                    of_folder = {_CHAIN_ID: "int"} if found.is_of_chain else {}
                    kinds = {field.name: _kind_of(field.type) for field in file.schema_arrow}
                    require_columns(self.name, kinds | of_folder)
        except (OSError, pa.ArrowException) as error:
            expected = f"Parquet that can be read ({reason_of(error)})"
            raise InputError("parquet", source.path, expected) from error

    def pages(self, after_id: int = 0) -> Iterator[Sequence[Row]]:
        """Yield the rows, those up to `after_id` too, as the files have them."""
        try:
            for found in self._files:
                with open_parquet(found.path, CONTENT) as file:
                    yield from _pages(found, file)
        except (OSError, pa.ArrowException) as error:
            raise SourceBroken(self.name, reason_of(error)) from error

    def notes(self) -> tuple[str, ...]:
        """Return nothing: a file of Parquet is whole, or cannot be read."""
        return ()


class _File(NamedTuple):
    """A file, and what the name of its folder says of its rows."""

    path: Path
    is_of_chain: bool
    """True if a folder names the chain of all rows: then a column of that name does not count."""
    chain_id: int | None


def _files(path: Path) -> list[_File]:
    """Return the files of a folder, except those that Spark leaves out too."""
    if not path.is_dir():
        return [_File(path, is_of_chain=False, chain_id=None)]
    found = [
        _file(file, path)
        for file in sorted(path.rglob("*"))
        if file.is_file() and not any(map(is_hidden, file.relative_to(path).parts))
    ]
    if not found:
        raise FileNotFoundError(f"{path} holds no file")
    if len({file.is_of_chain for file in found}) > 1:
        raise OSError(MIXED_FOLDERS)
    return found


def _file(file: Path, folder: Path) -> _File:
    names = [part for part in file.relative_to(folder).parts[:-1] if part.startswith(CHAIN_FOLDER)]
    chains = [name.removeprefix(CHAIN_FOLDER) for name in names]
    if not chains:
        return _File(file, is_of_chain=False, chain_id=None)
    if chains[-1] == _NO_PARTITION:
        return _File(file, is_of_chain=True, chain_id=None)
    try:
        return _File(file, is_of_chain=True, chain_id=int(chains[-1]))
    except ValueError:
        raise OSError(f"{file.parent}: {chains[-1]!r} is no chain") from None


def _kind_of(found: Any) -> str:  # noqa: ANN401 - as above
    if pa.types.is_dictionary(found):
        return _kind_of(found.value_type)
    if pa.types.is_fixed_size_binary(found) and found.byte_width <= PAYLOAD_BYTES_MAX:
        return "binary"
    return _KINDS.get(found, str(found))


def _pages(found: _File, file: Any) -> Iterator[Sequence[Row]]:  # noqa: ANN401 - as above
    names = [name for name in CONTENT if name != _CHAIN_ID or not found.is_of_chain]
    for columns in parquet_pages(found.path, file, names):
        if found.is_of_chain:
            columns.insert(0, [found.chain_id] * len(columns[0]))
        yield list(zip(*columns, strict=True))
