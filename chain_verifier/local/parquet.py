"""Parquet: rows with the columns of `chain_event`, read by row groups; and findings, written.

The same files are accepted as by Spark: values that are coded by a dictionary, and the chain's
number in the name of a folder, `chain_id=7`, instead of in a column.
"""

from __future__ import annotations

from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from chain_kernel.errors import InputError, RetryError, SourceBroken
from chain_kernel.limits import PAYLOAD_BYTES_MAX
from chain_kernel.text import reason_of
from chain_verifier.bounded_parquet import column_pages, open_parquet
from chain_verifier.findings import CHAIN, FINDING_TYPES, finding_columns, require_written
from chain_verifier.verification import CHAIN_FOLDER, CONTENT, MIXED_FOLDERS, require_columns

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from chain_verifier.config import ParquetSource
    from chain_verifier.findings import Finding, Findings
    from chain_verifier.local.table import Row


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


class LocalParquetTable:
    """The rows of one file or folder. The order of rows means nothing here: only ids count."""

    has_positions: Final = False

    def __init__(self, source: ParquetSource) -> None:
        self.name = source.name
        try:
            self._files = _files(Path(source.path))
            spans = [self._look_at(file) for file in self._files]
        except (OSError, pa.ArrowException) as error:
            expected = f"Parquet that can be read ({reason_of(error)})"
            raise InputError("parquet", source.path, expected) from error
        known = [span for span in spans if span is not None]
        lowest = min((first for first, _ in known), default=0)
        highest = max((last for _, last in known), default=-1)
        self.span = highest - lowest + 1 if len(known) == len(spans) else None

    def _look_at(self, found: _File) -> tuple[int, int] | None:
        """Check the columns of a file; return its lowest and highest id, None if it names none."""
        with open_parquet(found.path) as file:
            of_folder = {_CHAIN_ID: "int"} if found.is_of_chain else {}
            require_columns(self.name, _kinds_of(file.schema_arrow) | of_folder)
            groups = [_ids_of(file, index) for index in range(file.num_row_groups)]
        known = [ids for ids in groups if ids is not None]
        if not known or len(known) < len(groups):
            return None
        return min(first for first, _ in known), max(last for _, last in known)

    def pages(
        self, ids: tuple[int, int] | None = None, *, content: bool = True
    ) -> Iterator[Sequence[Row]]:
        """Yield the rows; row groups whose statistics are outside of `ids` are not read."""
        try:
            for found in self._files:
                with open_parquet(found.path) as file:
                    yield from _pages(found, file, ids)
        except (OSError, pa.ArrowException) as error:
            raise SourceBroken(self.name, reason_of(error)) from error

    def notes(self) -> tuple[str, ...]:
        """Return nothing: a file of Parquet is whole, or cannot be read."""
        return ()


class _File(NamedTuple):
    """A file, and what the name of its folder says of its rows."""

    path: Path
    is_of_chain: bool
    """Whether a folder names the chain of all rows: then a column of that name does not count."""
    chain_id: int | None


def _files(path: Path) -> list[_File]:
    """Return the files of a folder, except those that Spark leaves out too."""
    if not path.is_dir():
        return [_File(path, is_of_chain=False, chain_id=None)]
    found = [_file(file, path) for file in sorted(path.rglob("*")) if _counts(file, path)]
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


def _counts(file: Path, folder: Path) -> bool:
    parts = file.relative_to(folder).parts
    return file.is_file() and not any(part.startswith(("_", ".")) for part in parts)


def _kinds_of(schema: Any) -> dict[str, str]:  # noqa: ANN401 - pyarrow has no types
    return {field.name: _kind_of(field.type) for field in schema}


def _kind_of(found: Any) -> str:  # noqa: ANN401 - as above
    if pa.types.is_dictionary(found):
        return _kind_of(found.value_type)
    if pa.types.is_fixed_size_binary(found) and found.byte_width <= PAYLOAD_BYTES_MAX:
        return "binary"
    return _KINDS.get(found, str(found))


def _ids_of(file: Any, group: int) -> tuple[int, int] | None:  # noqa: ANN401 - pyarrow's own
    index = file.schema_arrow.get_field_index("id")
    statistics = file.metadata.row_group(group).column(index).statistics
    # Rows without an id are needed for every range: such a group has no known range.
    if statistics is None or not statistics.has_min_max or statistics.null_count != 0:
        return None
    return statistics.min, statistics.max


def _pages(
    found: _File,
    file: Any,  # noqa: ANN401 - pyarrow's own
    ids: tuple[int, int] | None,
) -> Iterator[Sequence[Row]]:
    groups = [
        index
        for index in range(file.num_row_groups)
        if ids is None
        or (span := _ids_of(file, index)) is None
        or (span[0] < ids[1] and span[1] >= ids[0])
    ]
    names = [name for name in CONTENT if name != _CHAIN_ID or not found.is_of_chain]
    for columns in column_pages(found.path, file, names, groups):
        if found.is_of_chain:
            columns.insert(0, [found.chain_id] * len(columns[0]))
        yield list(zip(*columns, strict=True))


_ARROW: Final = {
    "bigint": pa.int64(),
    "string": pa.string(),
    "array<bigint>": pa.list_(pa.int64()),
    "array<string>": pa.list_(pa.string()),
}

_SCHEMA: Final = pa.schema(
    [*((name, _ARROW[kind]) for name, kind in FINDING_TYPES.items()), (CHAIN, pa.int32())]
)

_PAGE: Final = 10_000
"""Findings held at a time."""


def write_findings(chain_id: int, findings: Findings, folder: str) -> None:
    """Add all `findings` of a chain to `folder`; what a search found is searched for once more.

    What was written is read back and counted. Raises RetryError when the files cannot be written or
    not all findings are there, SourceBroken when a source breaks off.
    """
    parquet, json = Path(folder) / "findings.parquet", Path(folder) / "findings.json"
    name = f"part-chain-{chain_id}"
    try:
        for path in (parquet, json):
            path.mkdir(parents=True, exist_ok=True)
        with (
            pq.ParquetWriter(parquet / f"{name}.parquet", _SCHEMA) as table,
            (json / f"{name}.json").open("wb") as lines,
        ):
            rows = (finding_columns(one) | {CHAIN: chain_id} for one in _every(findings))
            while page := list(islice(rows, _PAGE)):
                table.write_batch(pa.RecordBatch.from_pylist(page, schema=_SCHEMA))
                lines.writelines(msgspec.json.encode(_without_nulls(row)) + b"\n" for row in page)
        with (json / f"{name}.json").open("rb") as written:
            found = min(
                pq.read_metadata(parquet / f"{name}.parquet").num_rows, sum(1 for _ in written)
            )
    except OSError as error:
        reason = f"{error.filename}: {error.strerror}" if error.strerror else reason_of(error)
        raise RetryError(f"findings could not be written to {folder}: {reason}") from error
    why = "a source has changed since it was read"
    require_written(found, findings.total_by_row, folder, why)


def _every(findings: Findings) -> Iterator[Finding]:
    for whole in findings.wholes:
        if callable(whole):
            yield from whole()
        elif isinstance(whole, tuple):
            yield from chain(whole)


def _without_nulls(row: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that are not None: Spark's JSON leaves NULLs out too."""
    return {name: value for name, value in row.items() if value is not None}
