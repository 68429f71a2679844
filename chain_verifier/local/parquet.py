"""Parquet: rows with the columns of `chain_event`, read by row groups; and findings, written."""

from __future__ import annotations

from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from chain_verifier.bounded_parquet import column_pages, open_parquet
from chain_verifier.findings import CHAIN, FINDING_TYPES, finding_columns, require_written
from chain_verifier.verification import CONTENT, require_columns
from orderchain.errors import InputError, RetryError, SourceBroken
from orderchain.text import reason_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from chain_verifier.config import ParquetSource
    from chain_verifier.findings import Finding, Findings
    from chain_verifier.local.table import Row


_KINDS: Final = {
    pa.int8(): "tinyint",
    pa.int16(): "smallint",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.string(): "string",
    pa.large_string(): "string",
    pa.binary(): "binary",
    pa.large_binary(): "binary",
}
"""The allowed types, under the names that both modes use in their messages."""


class LocalParquetTable:
    """The rows of one file or folder. The order of rows means nothing here: only ids count."""

    has_positions: Final = False

    def __init__(self, source: ParquetSource) -> None:
        self.name = source.name
        try:
            self._paths = _files(Path(source.path))
            spans = [self._look_at(path) for path in self._paths]
        except (OSError, pa.ArrowException) as error:
            expected = f"Parquet that can be read ({reason_of(error)})"
            raise InputError("parquet", source.path, expected) from error
        known = [span for span in spans if span is not None]
        lowest = min((first for first, _ in known), default=0)
        highest = max((last for _, last in known), default=-1)
        self.span = highest - lowest + 1 if len(known) == len(spans) else None

    def _look_at(self, path: Path) -> tuple[int, int] | None:
        """Check the columns of a file; return its lowest and highest id, None if it names none."""
        with open_parquet(path) as file:
            self._require_columns(file.schema_arrow)
            groups = [_ids_of(file, index) for index in range(file.num_row_groups)]
        known = [ids for ids in groups if ids is not None]
        if not known or len(known) < len(groups):
            return None
        return min(first for first, _ in known), max(last for _, last in known)

    def _require_columns(self, schema: Any) -> None:  # noqa: ANN401 - pyarrow has no types
        found = {field.name: _KINDS.get(field.type, str(field.type)) for field in schema}
        require_columns(self.name, found)

    def pages(
        self, ids: tuple[int, int] | None = None, *, content: bool = True
    ) -> Iterator[Sequence[Row]]:
        """Yield the rows; row groups whose statistics are outside of `ids` are not read."""
        try:
            for path in self._paths:
                with open_parquet(path) as file:
                    yield from _pages(path, file, ids)
        except (OSError, pa.ArrowException) as error:
            raise SourceBroken(self.name, reason_of(error)) from error

    def notes(self) -> tuple[str, ...]:
        """Return nothing: a file of Parquet is whole, or cannot be read."""
        return ()


def _files(path: Path) -> list[Path]:
    """Return the files of a folder, except those that Spark leaves out too."""
    if not path.is_dir():
        return [path]
    found = [file for file in sorted(path.rglob("*")) if file.is_file() and _counts(file, path)]
    if not found:
        raise FileNotFoundError(f"{path} holds no file")
    return found


def _counts(file: Path, folder: Path) -> bool:
    return not any(part.startswith(("_", ".")) for part in file.relative_to(folder).parts)


def _ids_of(file: Any, group: int) -> tuple[int, int] | None:  # noqa: ANN401 - pyarrow's own
    index = file.schema_arrow.get_field_index("id")
    statistics = file.metadata.row_group(group).column(index).statistics
    # Rows without an id are needed for every range: such a group has no known range.
    if statistics is None or not statistics.has_min_max or statistics.null_count != 0:
        return None
    return statistics.min, statistics.max


def _pages(
    path: Path,
    file: Any,  # noqa: ANN401 - pyarrow's own
    ids: tuple[int, int] | None,
) -> Iterator[Sequence[Row]]:
    groups = [
        index
        for index in range(file.num_row_groups)
        if ids is None
        or (found := _ids_of(file, index)) is None
        or (found[0] < ids[1] and found[1] >= ids[0])
    ]
    for columns in column_pages(path, file, CONTENT, groups):
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
