"""Holds a batch of a chain against its rows: count, range, epoch and seal. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from chain_verifier.findings import Kind
from orderchain.row_image import column_images
from orderchain.seal import next_seal

if TYPE_CHECKING:
    from collections.abc import Iterator

ROW_COLUMNS: Final = ("id", "pid", "key", "event_time_ns", "payload")
"""What a seal covers of a row, beside its chain."""

BATCH_COLUMNS: Final = (
    "first_id", "id", "prev_last_id", "row_count", "epoch", "seal", "seal_before", "epoch_before",
    "committed_at_us",
)  # fmt: skip
"""What is read of a batch; its `id` is its last one."""


def misfits_of(
    chain_id: int, batch: dict[str, Any], rows: dict[str, list[Any]], count: int | None = None
) -> Iterator[dict[str, object]]:
    """Yield what is wrong with one batch, whose rows are given by column.

    `count` is how many rows there are, where not all are given. A batch that lacks rows or has
    others gives another seal too: then only the nearer cause is told.
    """
    found = {"id": batch["first_id"], "until_id": batch["id"]}
    if batch["epoch"] < (batch["epoch_before"] or 0):
        epochs = {"epoch": batch["epoch"], "expected_epoch": batch["epoch_before"]}
        yield found | {"kind": Kind.WRONG_EPOCH.value} | epochs
    ids, pids = rows["id"], rows["pid"]
    count = len(ids) if count is None else count
    if count != batch["row_count"]:
        counts = {"count": count, "expected_count": batch["row_count"]}
        yield found | {"kind": Kind.BATCH_COUNT.value} | counts
    elif (ids[0], ids[-1], pids[0]) != (batch["first_id"], batch["id"], batch["prev_last_id"]):
        ends = {"ids": [ids[0], ids[-1]], "pid": pids[0]}
        yield found | {"kind": Kind.BATCH_RANGE.value} | ends
    elif _seal_of(chain_id, batch, rows) != batch["seal"]:
        yield found | {"kind": Kind.SEAL_MISMATCH.value}


def _seal_of(chain_id: int, batch: dict[str, Any], rows: dict[str, list[Any]]) -> bytes:
    return next_seal(
        batch["seal_before"],
        epoch=batch["epoch"],
        first_id=batch["first_id"],
        last_id=batch["id"],
        row_count=batch["row_count"],
        committed_at_us=batch["committed_at_us"],
        rows=column_images(
            chain_id, rows["id"], rows["pid"], rows["key"], rows["event_time_ns"], rows["payload"]
        ),
    )
