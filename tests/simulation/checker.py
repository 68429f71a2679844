"""The invariants of the design, checked whenever anything is committed, published or handed on.

It keeps a chain of its own from what was committed, and holds everything else against that.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from typing import TYPE_CHECKING

from chain_kernel.errors import FrameError
from chain_kernel.frame import decode_body, decode_header
from chain_kernel.model import is_linked, split_client_key
from chain_kernel.seal import genesis_seal, next_seal
from chain_kernel.testing.memory_log import MemoryLog
from chain_kernel.testing.memory_store import CommittedChain

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from uuid import UUID

    from chain_kernel.errors import KeyTooOld
    from chain_kernel.model import Event, FrameTerm, IntakeMark, Run
    from chain_kernel.seal import Batch
    from sequencer.order import Ack


class Violation(AssertionError):
    """An invariant does not hold."""


def require(holds: object, invariant: str, *shown: object) -> None:
    """Raise Violation unless `holds`."""
    if not holds:
        raise Violation(f"{invariant}: {' '.join(map(str, shown))}")


class CheckedChain(CommittedChain):
    """A chain whose every commit is looked at, as the database sees it."""

    watch: Callable[[CommittedChain, Batch], None]
    watch_intake: Callable[[CommittedChain], None]
    watch_term: Callable[[], None]

    def begin_term(self, nonce: bytes, owner: str = "") -> FrameTerm:
        term = super().begin_term(nonce, owner)
        self.watch_term()
        return term

    def store(self, batch: Batch, published_id: int, intake: Sequence[IntakeMark]) -> None:
        self.watch(self, batch)
        super().store(batch, published_id, intake)

    def move_intake(self, intake: Sequence[IntakeMark]) -> None:
        """The last part of a `store`, too, whether it brings marks or not."""
        super().move_intake(intake)
        self.watch_intake(self)


class CheckedLog(MemoryLog):
    """A log whose every record is looked at."""

    watch: Callable[[Sequence[bytes]], None]

    def append(self, frames: Sequence[bytes]) -> None:
        self.watch(frames)
        super().append(frames)


class Tries:
    """S9: what clients heard of orders that are on their way.

    While one try of a key is open, or ended in silence, the order may be committed at any time.
    """

    def __init__(self, checker: Checker) -> None:
        self._checker = checker
        self._open: Counter[str] = Counter()
        self._in_doubt: set[str] = set()

    def may_commit(self, key: str) -> bool:
        return self._open[key] > 0 or key in self._in_doubt

    def begin(self, keys: Sequence[str]) -> None:
        self._open.update(keys)

    def end(self, keys: Sequence[str], surely_not: object) -> None:
        """A try is over; `surely_not` is the error that said that nothing was committed, if so."""
        self._open.subtract(keys)
        for key in keys:
            if surely_not is None:
                self._in_doubt.add(key)
            elif not self.may_commit(key):
                self._checker.require(
                    key not in self._checker.by_key, "S9 reported that it was not", key, surely_not
                )


class Checker:
    """C, the committed rows, and what must be true of K, R and A (design, section 10)."""

    def __init__(self, chain_id: int, database_id: UUID) -> None:
        self.chain_id = chain_id
        self.events: list[Event] = []
        self.ids: list[int] = []
        self.by_key: dict[str, Event] = {}
        self.seals: dict[int, bytes] = {0: genesis_seal(database_id, chain_id)}
        self.epoch = 0
        self.tries = Tries(self)
        self.steps = 0
        self.too_old = 0
        self.violation: Violation | None = None

    def require(self, holds: object, invariant: str, *shown: object) -> None:
        """Keep the first violation: the caller that gets it may swallow it."""
        self.steps += 1
        try:
            require(holds, invariant, *shown)
        except Violation as violation:
            self.violation = self.violation or violation
            raise

    @property
    def head_id(self) -> int:
        return self.ids[-1] if self.ids else 0

    def on_commit(self, chain: CommittedChain, batch: Batch) -> None:
        """S1, S4, S7, S9, and that the seal is right."""
        self.require(batch.pid == self.head_id, "S1 one chain", batch.pid, self.head_id)
        self.require(is_linked(batch.pid, batch.events), "S1 linked", batch.first_id)
        self.require(
            batch.epoch == chain.epoch and batch.epoch >= self.epoch,
            "S7 fence",
            f"batch of epoch {batch.epoch} in epoch {chain.epoch}",
        )
        seal = next_seal(
            self.seals[batch.pid],
            epoch=batch.epoch,
            first_id=batch.first_id,
            last_id=batch.last_id,
            row_count=batch.row_count,
            committed_at_us=batch.committed_at_us,
            pages=batch.pages,
        )
        self.require(batch.seal == seal, "seal", batch.last_id)
        for event in batch.events:
            self.require(event.key not in self.by_key, "S4 one row a key", event)
            self.require(self.tries.may_commit(event.key), "S9 said not to be", event.key, event.id)
            self.by_key[event.key] = event
        self.epoch = batch.epoch
        self.events += batch.events
        self.ids += [event.id for event in batch.events]
        self.seals[batch.last_id] = seal

    def on_publish(self, frames: Sequence[bytes]) -> None:
        """S2 for frames."""
        for frame in frames:
            try:
                header = decode_header(frame)
            except FrameError:
                continue
            if header.is_heartbeat:
                seal = self.seals.get(header.last_id)
                self.require(seal == header.seal_before, "S2 heartbeat", header.last_id)
                continue
            events = decode_body(frame, header)
            at = self._index_behind(header.first_pid)
            committed = self.events[at : at + len(events)]
            self.require(events == committed, "S2 frame before its commit", header.first_id)

    def on_run(self, receiver: str, head_delivered: int, run: Run) -> None:
        """S2, S5 and S11 for what is handed on behind `head_delivered`."""
        self.require(
            run.first_pid == head_delivered,
            "S5 order of delivery",
            f"{receiver} was at {head_delivered}, then got {run.first_pid}",
        )
        at = self._index_behind(run.first_pid)
        committed = self.events[at : at + len(run.events)]
        self.require(run.events == committed, "S2 delivered before committed", run.first_pid)
        self.require(run.end.id == run.last_id == run.events[-1].id, "S11 end of run", run.end)
        self.require(
            self.seals.get(run.end.batch_last_id) == run.end.seal, "seal of a run", run.end
        )

    def on_effect(self, receiver: str, effects: Sequence[Event], added: int) -> None:
        """S5 across restarts: effects are a prefix of C."""
        at = len(effects) - added
        self.require(
            list(effects[at:]) == self.events[at : len(effects)],
            "S5 effects are a prefix",
            f"{receiver}: {[event.id for event in effects[at:]]} at place {at}",
        )

    def on_ack(self, key: str, payload: bytes, ack: Ack) -> None:
        """S3 and S4 for an acknowledged order."""
        row = self.by_key.get(key)
        self.require(row is not None, "S3 acknowledged before committed", key, ack)
        if row is not None:
            same = (row.id, row.pid, row.payload) == (ack.id, ack.pid, payload)
            self.require(same, "S4 one place a key", key, ack, row)

    def on_too_old(self, error: KeyTooOld, window_rows: int) -> None:
        """S4: what is too old is below the client's highest, and no row of the window."""
        self.too_old += 1
        key = str(error.value)
        row = self.by_key.get(key)
        split = split_client_key(key)
        self.require(
            split is not None and split[1] < error.highest, "S4 too old, not below", key, error
        )
        if row is not None:
            rows_behind = len(self.ids) - self._index_behind(row.id)
            self.require(rows_behind >= window_rows, "S4 too old within the window", key, row.id)

    def _index_behind(self, row_id: int) -> int:
        return bisect_right(self.ids, row_id)
