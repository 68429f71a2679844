"""Checks batches and the chain of seals against what is stored of them, or archived. Pure."""

from __future__ import annotations

from datetime import datetime
from struct import Struct as Packing
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from msgspec import Struct

from chain_kernel.clock import ns_of
from chain_kernel.seal import Columns, content_of, genesis_seal, page_image, seal_over
from chain_kernel.text import counted
from chain_verifier.findings import Finding, Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from chain_verifier.config import KeptSeal
    from chain_verifier.database_facts import DatabaseFacts

    Computed = Callable[[int], Collection[bytes]]


IMAGES: Final = ("ids", "pids", "keys", "event_times_ns", "payloads")
"""Columns of a batch that a seal covers, in the order in which the database sends them."""

_GUESSES_MAX: Final = 2
"""Maximum number of seals that a wrong one may represent: the one that follows from what is stored,
and the one that follows from what should be stored."""

_GENESIS: Final = 0
_HEADER: Final = Packing(">iiIii")
_INT: Final = Packing(">iq")
_INT_LENGTH: Final = (8).to_bytes(4, "big")


class BatchRows(Struct, frozen=True):
    """Contents of the pages of a batch."""

    rows: int
    ends: tuple[int, ...] | None
    """The first id, the last one, and the pid of the first row; None if they are no numbers."""
    content: bytes | None
    """The digest that the seal covers; None if the columns do not fit each other."""


def stored_of(batch: Mapping[str, Any]) -> BatchRows:
    """Return what the images and headers of a batch say, as the statement `sealed` returns them."""
    headers = list(_HEADER.iter_unpack(batch["headers"] or b""))
    pages = [headers[at : at + len(IMAGES)] for at in range(0, len(headers), len(IMAGES))]
    ids, pids = batch["ids"] or b"", batch["pids"] or b""
    return BatchRows(
        rows=sum(max(rows for _, _, _, rows, _ in page) for page in pages),
        ends=_ends(ids[: _INT.size], ids[-_INT.size :], pids[: _INT.size]),
        content=content_of(batch[name] or b"" for name in IMAGES)
        if all(map(_is_even, pages))
        else None,
    )


def _is_even(page: Sequence[tuple[int, ...]]) -> bool:
    """Return whether the columns have one dimension, counted from 1, and one length.

    Otherwise the same bytes could be those of other rows.
    """
    length = page[0][3]
    return all((header[0], header[3], header[4]) == (1, length, 1) for header in page)


def _ends(*images: bytes) -> tuple[int, ...] | None:
    """Return the numbers that these images encode; None if one is NULL or missing."""
    if any(len(image) != _INT.size or image[:4] != _INT_LENGTH for image in images):
        return None
    return tuple(_INT.unpack(image)[1] for image in images)


class BatchCheck:
    """Takes the batches of one chain in the order of ids, each with what is stored of it.

    A seal covers the one before it: after a wrong stored seal, no batch would give its own seal. So
    after a batch that did not give its stored seal, the next batch is also checked against the seal
    that the earlier batch gave. One wrong seal is then one finding.
    """

    def __init__(self, genesis: bytes) -> None:
        """Begin anywhere in the chain; `genesis` is the seal that its genesis must have."""
        self._at_id = _GENESIS
        self._due: tuple[bytes, ...] = (genesis,)
        """Seal due after the last batch; another one may be stored."""

    def follows(self, batch: Mapping[str, Any]) -> bool:
        """Return whether `batch` directly follows the last batch that was taken."""
        return bool(batch["prev_last_id"] == self._at_id)

    def misfits(self, batch: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return what is wrong with one batch, a row of the statement `sealed`.

        A batch that lacks rows or has others gives another seal too: then only the more direct
        cause is reported. A seal that does not match comes with those that were `computed`.
        """
        due = self._due if self.follows(batch) else ()
        found = list(self._look(batch, stored_of(batch), due))
        computed: list[bytes] = next((one["computed"] for one in found if "computed" in one), [])
        self._at_id, self._due = batch["id"], tuple(computed[:_GUESSES_MAX])
        return found

    def _look(
        self, batch: Mapping[str, Any], stored: BatchRows, due: tuple[bytes, ...]
    ) -> Iterator[dict[str, Any]]:
        found = {"id": batch["first_id"], "until_id": batch["id"]}
        place = found | {"pid": batch["prev_last_id"]}
        if batch["epoch"] < (batch["epoch_before"] or 0):
            epochs = {"epoch": batch["epoch"], "expected_epoch": batch["epoch_before"]}
            yield found | {"kind": Kind.WRONG_EPOCH.value} | epochs
        if stored.rows != batch["row_count"]:
            counts = {"count": stored.rows, "expected_count": batch["row_count"]}
            yield place | {"kind": Kind.BATCH_COUNT.value} | counts
        elif stored.ends is None or stored.content is None:
            yield place | {"kind": Kind.SEAL_MISMATCH.value, "computed": []}
        elif stored.ends != (batch["first_id"], batch["id"], batch["prev_last_id"]):
            ends = {"ids": list(stored.ends[:2]), "pid": stored.ends[2]}
            yield found | {"kind": Kind.BATCH_RANGE.value} | ends
        else:
            computed = _seals_of(batch, stored.content, due)
            if batch["seal"] not in computed:
                yield place | {"kind": Kind.SEAL_MISMATCH.value, "computed": computed}


def _seals_of(batch: Mapping[str, Any], content: bytes, due: tuple[bytes, ...]) -> list[bytes]:
    """Return the seals that the rows give after each seal that may precede them."""
    if batch["committed_at_us"] is None:
        return []
    return [
        seal_over(
            before,
            epoch=batch["epoch"],
            first_id=batch["first_id"],
            last_id=batch["id"],
            row_count=batch["row_count"],
            committed_at_us=batch["committed_at_us"],
            content=content,
        )
        for before in (batch["seal_before"], *due)
        if before is not None
    ]


def genesis_of(facts: DatabaseFacts, chain_id: int) -> bytes:
    """Return the seal that the genesis of a chain must have in its database."""
    return genesis_seal(UUID(facts.head.database_id), chain_id)


def seal_ends(
    facts: DatabaseFacts, chain_id: int, kept: Sequence[KeptSeal], computed: Computed
) -> Iterator[Finding]:
    """Yield what does not fit. Raises SourceBroken.

    A chain whose first rows are archived has no genesis. For a batch that is stored under another
    seal, `computed` returns the seals that its rows gave. The stored seal is already a finding; if
    rows and end agree, the end is no further one.
    """
    seal = facts.seal_at(_GENESIS)
    if seal is not None and seal != genesis_of(facts, chain_id):
        yield _mismatch(facts, Kind.SEAL_MISMATCH, _GENESIS)
    if not _is_held(facts, facts.head.last_id, facts.head.seal, computed):
        yield _mismatch(facts, Kind.HEAD_SEAL, facts.head.last_id)
    # By id: the report names the first that does not fit, and only a sample of them is kept.
    for each in sorted(kept, key=lambda each: each.id):
        if not _is_held(facts, each.id, each.seal, computed):
            yield _mismatch(facts, Kind.KEPT_SEAL, each.id)


def _is_held(facts: DatabaseFacts, last_id: int, seal: bytes, computed: Computed) -> bool:
    """Return whether a batch ends with `last_id` under `seal`, or its rows say that it should."""
    stored = facts.seal_at(last_id)
    if stored is None or stored == seal:
        return stored is not None
    return seal in computed(last_id)


def _mismatch(facts: DatabaseFacts, kind: Kind, row_id: int) -> Finding:
    return Finding(kind=kind, source=facts.name, id=row_id, until_id=row_id)


class SealedBatch(Struct, frozen=True, kw_only=True, gc=False):
    """A row of `chain_batch`."""

    first_id: int
    last_id: int
    prev_last_id: int
    row_count: int
    epoch: int
    seal: bytes
    committed_at: datetime

    def seal_after(self, before: bytes, content: bytes) -> bytes:
        """Return the seal that rows of this `content` give after the seal `before`."""
        return seal_over(
            before,
            epoch=self.epoch,
            first_id=self.first_id,
            last_id=self.last_id,
            row_count=self.row_count,
            committed_at_us=ns_of(self.committed_at) // 1_000,
            content=content,
        )


ArchivedRow = tuple[int, int, str, int, bytes]
"""id, pid, key, event_time_ns, payload."""


class SealRun:
    """Place up to which a chain was checked: the last row, and the seal after it."""

    def __init__(self, chain_id: int, at_id: int, seal: bytes) -> None:
        self.at_id = at_id
        self.seal = seal
        self._chain_id = chain_id

    def fault(self, batch: SealedBatch, rows: Sequence[ArchivedRow]) -> str | None:
        """Move to the end of `batch`; return what is wrong with it, None if nothing is."""
        name = f"the batch that ends at {batch.last_id}"
        if batch.prev_last_id != self.at_id:
            return f"{name} follows {batch.prev_last_id}, expected {self.at_id}"
        if not rows or len(rows) != batch.row_count:
            return f"{name} has {counted(len(rows), 'row')}, expected {batch.row_count}"
        at_id = self.at_id
        for row_id, pid, *_ in rows:
            if pid != at_id or row_id <= pid:
                return f"row {row_id} names pid {pid}, expected {at_id}"
            at_id = row_id
        if (rows[0][0], at_id) != (batch.first_id, batch.last_id):
            return f"{name} holds rows {rows[0][0]} to {at_id}, expected from {batch.first_id}"
        columns: list[Any] = [list(column) for column in zip(*rows, strict=True)]
        content = content_of(page_image(Columns(*columns)).columns)
        if batch.seal_after(self.seal, content) != batch.seal:
            return f"{name} does not have the seal of its rows"
        self.at_id, self.seal = batch.last_id, batch.seal
        return None
