"""All findings as files: Parquet and JSON, one folder each, as the other mode writes them."""

from __future__ import annotations

from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from chain_verifier.findings import Finding
from orderchain.errors import RetryError
from orderchain.text import reason_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from chain_verifier.findings import Findings

_SCHEMA: Final = pa.schema(
    [
        ("kind", pa.string()),
        ("source", pa.string()),
        ("id", pa.int64()),
        ("pid", pa.int64()),
        ("ids", pa.list_(pa.int64())),
        ("after_id", pa.int64()),
        ("until_id", pa.int64()),
        ("count", pa.int64()),
        ("expected_count", pa.int64()),
        ("columns", pa.list_(pa.string())),
        ("against", pa.string()),
        ("chain_id", pa.int64()),
        ("epoch", pa.int64()),
        ("expected_epoch", pa.int64()),
        ("key", pa.string()),
        ("seal", pa.string()),
        ("expected_seal", pa.string()),
        ("mark_id", pa.int64()),
        ("verified_by", pa.string()),
        ("verified_at", pa.string()),
        ("chain", pa.int32()),
    ]
)
"""The fields of a finding, and the chain that was verified; the same as in the other mode."""

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
            rows = (_row(finding, chain_id) for finding in _every(findings))
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
    if found != findings.total:
        raise RetryError(
            f"findings could not be written to {folder}: {found} of {findings.total} are there "
            "(a source has changed since it was read)"
        )


def _every(findings: Findings) -> Iterator[Finding]:
    for whole in findings.wholes:
        if callable(whole):
            yield from whole()
        elif isinstance(whole, tuple):
            yield from chain(whole)


def _row(finding: Finding, chain_id: int) -> dict[str, Any]:
    """Return the columns of a finding; an empty field is None."""
    fields = {name: getattr(finding, name) for name in Finding.__struct_fields__}
    filled = {name: None if value in ((), "") else value for name, value in fields.items()}
    return filled | {"kind": finding.kind.value, "chain": chain_id}


def _without_nulls(row: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that are not None: Spark's JSON leaves NULLs out too."""
    return {name: value for name, value in row.items() if value is not None}
