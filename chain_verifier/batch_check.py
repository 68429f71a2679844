"""Holds the batches of a chain against their rows: count, range, epoch and seal. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from chain_verifier.findings import Kind
from orderchain.page_image import page_image
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

_GUESSES_MAX: Final = 2
"""Most seals that a wrong one is held to stand for: the one that follows from what is stored, and
the one that follows from what should be."""

_GENESIS: Final = 0


class BatchCheck:
    """Takes the batches of one chain in the order of ids, each with its rows.

    A seal covers the one before it: behind a stored seal that is wrong no batch would give its own.
    So a batch behind one that did not give its seal is held against the seal that that one gave,
    too, and one wrong seal is one finding.
    """

    def __init__(self, chain_id: int, genesis: bytes) -> None:
        """Begin anywhere in the chain; `genesis` is the seal that its genesis must have."""
        self._chain_id = chain_id
        self._at_id = _GENESIS
        self._due: tuple[bytes, ...] = (genesis,)
        """What the seal after the last batch should be, where another one may be stored."""

    def follows(self, batch: dict[str, Any]) -> bool:
        """Return whether the batch taken last is the one before `batch`."""
        return bool(batch["prev_last_id"] == self._at_id)

    def misfits(
        self, batch: dict[str, Any], rows: dict[str, list[Any]], count: int | None = None
    ) -> list[dict[str, Any]]:
        """Return what is wrong with one batch, whose rows are given by column.

        `count` is how many rows there are, where not all are given. A batch that lacks rows or has
        others gives another seal too: then only the nearer cause is told. A seal that does not
        match comes with those that were `computed`.
        """
        due = self._due if self.follows(batch) else ()
        found = list(self._look(batch, rows, len(rows["id"]) if count is None else count, due))
        computed: list[bytes] = next((one["computed"] for one in found if "computed" in one), [])
        self._at_id, self._due = batch["id"], tuple(computed[:_GUESSES_MAX])
        return found

    def _look(
        self, batch: dict[str, Any], rows: dict[str, list[Any]], count: int, due: tuple[bytes, ...]
    ) -> Iterator[dict[str, Any]]:
        found = {"id": batch["first_id"], "until_id": batch["id"]}
        if batch["epoch"] < (batch["epoch_before"] or 0):
            epochs = {"epoch": batch["epoch"], "expected_epoch": batch["epoch_before"]}
            yield found | {"kind": Kind.WRONG_EPOCH.value} | epochs
        ids, pids = rows["id"], rows["pid"]
        if count != batch["row_count"]:
            counts = {"count": count, "expected_count": batch["row_count"]}
            yield found | {"kind": Kind.BATCH_COUNT.value} | counts
        elif (ids[0], ids[-1], pids[0]) != (batch["first_id"], batch["id"], batch["prev_last_id"]):
            ends = {"ids": [ids[0], ids[-1]], "pid": pids[0]}
            yield found | {"kind": Kind.BATCH_RANGE.value} | ends
        else:
            computed = self._seals_of(batch, rows, due)
            if computed:
                yield found | {"kind": Kind.SEAL_MISMATCH.value, "computed": computed}

    def _seals_of(
        self, batch: dict[str, Any], rows: dict[str, list[Any]], due: tuple[bytes, ...]
    ) -> list[bytes]:
        """Return the seals that the rows give, behind each that may stand before; none if one of
        them is stored.
        """
        ids, pids, keys, times_ns, payloads = (rows[name] for name in ROW_COLUMNS)
        pages = (page_image(ids, pids, list(map(str.encode, keys)), times_ns, payloads),)
        computed: list[bytes] = []
        for before in (batch["seal_before"], *due):
            seal = next_seal(
                before,
                epoch=batch["epoch"],
                first_id=batch["first_id"],
                last_id=batch["id"],
                row_count=batch["row_count"],
                committed_at_us=batch["committed_at_us"],
                pages=pages,
            )
            if seal == batch["seal"]:
                return []
            computed.append(seal)
        return computed
