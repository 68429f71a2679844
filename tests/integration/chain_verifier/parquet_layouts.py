"""The rows of a chain in Parquet, as writers other than Spark lay them out."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.integration.chain_verifier.planted_faults import CHAIN_ID, Row

_PLAIN: dict[str, Any] = {
    "chain_id": pa.int32(), "id": pa.int64(), "pid": pa.int64(), "key": pa.string(),
    "event_time_ns": pa.int64(), "payload": pa.binary(),
}  # fmt: skip

OTHER_LAYOUTS: dict[str, tuple[str, dict[str, Any]]] = {
    # As pandas writes a column of categories.
    "dictionary": ("", {"key": pa.dictionary(pa.int32(), pa.string()),
                        "payload": pa.dictionary(pa.int32(), pa.binary())}),
    "views": ("", {"key": pa.string_view(), "payload": pa.binary_view()}),
    "large": ("", {"key": pa.large_string(), "payload": pa.large_binary(),
                   "chain_id": pa.uint16()}),
    "folders": (f"chain_id={CHAIN_ID}", {}),
    "folders of days": (f"chain_id={CHAIN_ID}/day=2025-01-02", {}),
}  # fmt: skip
"""The folder of the file, and the types that are not the plain ones, by the layout's name."""


def write_layout(name: str, folder: Path, rows: Sequence[Row]) -> None:
    """Write the rows, in two files; where a folder names the chain, no column does."""
    below, types = OTHER_LAYOUTS[name]
    kinds = _PLAIN | types
    if below:
        del kinds["chain_id"]
    (folder / below).mkdir(parents=True, exist_ok=True)
    for number, part in enumerate((rows[: len(rows) // 2], rows[len(rows) // 2 :])):
        columns = {
            column: pa.array([getattr(row, column) for row in part]).cast(kind)
            for column, kind in kinds.items()
        }
        pq.write_table(pa.table(columns), folder / below / f"{number}.parquet")
