"""The columns of a row, by which two sources are compared. Imports nothing else."""

from __future__ import annotations

from typing import Any, Final

EVENT_TYPES: Final = {
    "chain_id": "int",
    "id": "bigint",
    "pid": "bigint",
    "key": "string",
    "event_time_ns": "bigint",
    "payload": "binary",
}
"""The columns of `chain_event`, with their types in SQL."""

CONTENT: Final = tuple(EVENT_TYPES)

EVENT: Final = CONTENT[1:]
"""Those of an order, which its chain is not part of."""

Row = tuple[Any, ...]
"""The values of `CONTENT`; a plain tuple, since there are millions of them."""
