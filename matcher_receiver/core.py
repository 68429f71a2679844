"""The receive state machine: from values to decisions, with no I/O, no clock and no randomness.

The order of its checks is the protocol. A frame is first checked for its chain, then for its term
(the nonce), then for the MAC under that term's key, and only then for its ids: ids of a sender that
the database does not confirm mean nothing. See `docs/protocol.md` for every cell.

Seals of frames are provisional. A receiver does not compute a seal, it compares: the seal before a
batch must be the one after the previous batch. When the database later contradicts only the seal,
the rows themselves are compared; only rows that differ halt. For that the core keeps the records of
the last batch that it delivered from frames, or the end of it, within `UNPROVEN_BYTES_MAX`.

So there are two places. `head` has the seal from a frame, and the next frame is judged by it. The
other has the last seal that the database itself has shown. Only that seal leaves this core, as the
end of a run: a seal that only a frame has shown would halt the next start permanently.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from chain_kernel.errors import (
    ForeignDatabase,
    ForkFound,
    FrameError,
    HaltError,
    PrimaryBehind,
    SealMismatch,
    SettingError,
)
from chain_kernel.frame import decode_body, decode_linked_body, is_signed
from chain_kernel.model import TERMS_MAX, Mark, Run
from matcher_receiver.decisions import (
    CHECK_EPOCH,
    CHECK_LINK,
    CHECK_SEAL,
    COMPARE,
    CONFIRM_NONCE,
    DELIVER,
    DELIVER_NEW_PART,
    DROP_CHAIN,
    DROP_MAC,
    DROP_OLD,
    DROP_PHANTOM,
    IN_STEP,
    WAIT,
    Check,
    ConfirmNonce,
    Drop,
    Fill,
    FrameDecision,
    GapDecision,
    Halt,
    InStep,
    PositionDecision,
    State,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from chain_kernel.frame import FrameHeader
    from chain_kernel.model import Cause, ChainHead, ChainPosition, Event, FrameTerm

NONCES_MAX: Final = TERMS_MAX
"""Terms known at once, the newest. Frames of older terms are dropped, at the cost of a read."""

UNPROVEN_BYTES_MAX: Final = 16 * 1024 * 1024
"""Bytes of records kept to compare the last batch, at least the last record. If a batch is larger,
only its last rows are compared: memory must stay bounded."""

_id_of = attrgetter("id")


class ReceiveCore:
    """Decides about each frame and each reading of the database, for one chain.

    All methods are called from one task, in the order of arrival.
    """

    def __init__(self, chain_id: int, start: Mark, database_id: UUID | None = None) -> None:
        self.chain_id = chain_id
        self.head = start
        """The place after the last row that was delivered, with the seal that the last frame
        showed. Its id never falls."""
        self.state = State.CATCHING_UP
        self.fill_until = start.id
        """Last id of the open fill; <= `head.id` when none is open."""
        self.fill_cause: Cause = "start"
        self.halted_by: HaltError | None = None
        # The database in which the place was stored; else the first one read.
        self._database_id = database_id
        # By nonce, the keys of the terms that the primary confirmed when it last agreed with us.
        self._frame_keys: dict[bytes, bytes] = {}
        self._proven = start  # the last whole batch, and its seal, as the database has shown it
        # The records that were delivered after the row `_kept_after`, to be compared: those of the
        # last batch, or its end. None are kept for rows that came from the database itself.
        self._kept: deque[tuple[FrameHeader, bytes]] = deque()
        self._kept_bytes = 0
        self._kept_after = start.id

    # -- frames --------------------------------------------------------------------------------

    def admit(self, header: FrameHeader, record: bytes) -> Drop | ConfirmNonce | None:
        """Decide whether a frame is a leader's; None if it is, and is to be judged."""
        if header.chain_id != self.chain_id:
            return DROP_CHAIN
        frame_key = self._frame_keys.get(header.publisher_nonce)
        if frame_key is None:
            return CONFIRM_NONCE
        return None if is_signed(record, frame_key) else DROP_MAC

    def judge(self, header: FrameHeader) -> FrameDecision:
        """Decide about a frame that was admitted, from its header alone."""
        if header.count == 0:
            return self._judge_heartbeat(header)
        head = self.head
        if header.last_id <= head.id:
            return DROP_OLD
        if header.first_pid > head.id:
            return Fill(header.first_pid, "frame")
        # From here on the frame holds the next row, if its header is true. All slices of a batch
        # carry the seal before it, which is the one we hold until its last row is delivered.
        if header.seal_before != head.seal:
            return CHECK_SEAL
        if header.epoch < head.epoch:
            return CHECK_EPOCH
        return DELIVER if header.first_pid == head.id else DELIVER_NEW_PART

    def _judge_heartbeat(self, header: FrameHeader) -> FrameDecision:
        head = self.head
        if header.last_id > head.id:
            return Fill(header.last_id, "heartbeat")
        if header.last_id < head.id:
            return DROP_OLD
        # A heartbeat reports a head, and a head is the end of a batch.
        if header.seal_before != head.seal or not head.is_batch_end:
            return CHECK_SEAL
        self._leave_start()
        return IN_STEP

    def deliver(self, header: FrameHeader, record: bytes) -> Run | Check:
        """Move the head over a frame that was judged DELIVER, and return its rows.

        Raises FrameError when the body cannot be read; then nothing has moved.
        """
        events = _linked_rows(record, header)
        return CHECK_LINK if events is None else self._advance(header, record, events)

    def deliver_new_part(self, header: FrameHeader, record: bytes) -> Run | Check:
        """Move the head over a frame judged DELIVER_NEW_PART; return the rows after the old head.

        The row of the head must be in the frame, or the frame shows another chain than ours.
        Raises FrameError when the body cannot be read; then nothing has moved.
        """
        events = _linked_rows(record, header)
        if events is None:
            return CHECK_LINK
        at = bisect_left(events, self.head.id, key=_id_of)
        if events[at].id != self.head.id:
            return CHECK_LINK
        return self._advance(header, record, events[at + 1 :])

    def _advance(self, header: FrameHeader, record: bytes, events: list[Event]) -> Run:
        self._remember(header, record)
        head = self.head
        if header.is_batch_end:
            end = Mark(
                id=header.last_id,
                batch_last_id=header.last_id,
                seal=header.seal_after,
                epoch=header.epoch,
            )
        else:
            end = Mark(
                id=header.last_id,
                batch_last_id=head.batch_last_id,
                seal=head.seal,
                epoch=head.epoch,
            )
        self.head = end
        self._leave_start()
        return Run(chain_id=self.chain_id, events=events, end=self._proven_at(end.id))

    def _proven_at(self, row_id: int) -> Mark:
        """Return the place after a row, with the last seal that the database has shown."""
        proven = self._proven
        return Mark(
            id=row_id, batch_last_id=proven.batch_last_id, seal=proven.seal, epoch=proven.epoch
        )

    def _remember(self, header: FrameHeader, record: bytes) -> None:
        """Keep `record` until the batch after it, or the database, agrees with its seal."""
        if self.head.is_batch_end:
            self._forget_records(self.head.id)
        self._kept_bytes += len(record)
        self._kept.append((header, record))
        while self._kept_bytes > UNPROVEN_BYTES_MAX and len(self._kept) > 1:
            self._forget_records_up_to(self._kept[0][0].last_id)

    def _forget_records(self, after_id: int) -> None:
        self._kept.clear()
        self._kept_bytes = 0
        self._kept_after = after_id

    def _forget_records_up_to(self, row_id: int) -> None:
        while self._kept and self._kept[0][0].last_id <= row_id:
            _, record = self._kept.popleft()
            self._kept_bytes -= len(record)
        self._kept_after = max(self._kept_after, row_id)

    def _prove(self, mark: Mark) -> None:
        self._proven = mark
        self._forget_records(mark.id)

    # -- the database --------------------------------------------------------------------------

    def judge_standing(self, standing: ChainPosition, cause: Cause) -> PositionDecision:
        """Decide about what the database says about our own head.

        `standing` was read at its id, and at the batch whose seal we hold. For a place that was
        stored, that may be an older batch than the last one at or before the row. Then only its
        seal, and that the row is there, can be compared. The seal of the last batch is adopted.

        This is where terms become known: in one snapshot the primary shows them, and holds the row
        and the seal that we hold. Terms that it does not show are no longer known.
        """
        self._refuse_other_chain(standing.head.chain_id)
        head, mark = standing.head, standing.mark
        if not standing.is_primary:
            return self._judge_standby(standing, cause)
        error = self._contradiction(head)
        if error is None and mark is None:
            error = ForkFound(self.chain_id, self.head.batch_last_id, self.head.id, None)
        if error is not None:
            return Halt(error)
        if mark is None or not _holds(standing, self.head):
            return self._judge_seal(standing)
        self.head = mark
        self._prove(mark)
        self._know(standing.terms)
        return self._in_step_or_fill(head, cause)

    def _judge_standby(self, standing: ChainPosition, cause: Cause) -> PositionDecision:
        """A standby may still get what it lacks; the fill will compare what it has."""
        if self._is_foreign(standing.head) or not _holds(standing, self.head):
            return WAIT
        return self._in_step_or_fill(standing.head, cause)

    def _in_step_or_fill(self, head: ChainHead, cause: Cause) -> PositionDecision:
        if head.last_id > self.head.id:
            return Fill(head.last_id, cause)
        self._leave_start()
        return IN_STEP

    def _judge_seal(self, standing: ChainPosition) -> PositionDecision:
        if not self._kept:
            # What we hold is the database's own earlier answer.
            found = standing.batch_seal or (standing.mark.seal if standing.mark else b"")
            return Halt(SealMismatch(self.chain_id, self.head.id, self.head.seal, found))
        return COMPARE

    @property
    def is_proven(self) -> bool:
        """True if the database has shown the seal that we hold."""
        return self._proven.batch_last_id == self.head.batch_last_id

    def accept_proof(self, asked: Mark, standing: ChainPosition) -> bool:
        """Take what the database says about a place that we have passed since.

        Returns whether it holds what we held there; if not, our own standing must be read.
        """
        self._refuse_other_chain(standing.head.chain_id)
        if not standing.is_primary:
            return True  # its answer proves nothing
        mark = standing.mark
        if mark is None or self._is_foreign(standing.head) or not _holds(standing, asked):
            return False
        if mark.batch_last_id > self._proven.batch_last_id:
            self._proven = mark
            self._forget_records_up_to(mark.batch_last_id)
        if asked == self.head:  # else it is no reading of our own head, in one snapshot with terms
            self._know(standing.terms)
        return True

    def judge_gap(self, standing: ChainPosition, fill: Fill) -> GapDecision:
        """Decide whether rows that a frame reports are there (`standing` was read at its pid).

        A commit comes before its publication. So if the primary, read after the frame has arrived,
        lacks the rows, they were never committed, and the frame is a phantom.
        """
        self._refuse_other_chain(standing.head.chain_id)
        if not standing.is_primary:
            return WAIT if standing.mark is None or self._is_foreign(standing.head) else fill
        error = self._contradiction(standing.head)
        if error is not None:
            return Halt(error)
        return DROP_PHANTOM if standing.mark is None else fill

    def _contradiction(self, head: ChainHead) -> HaltError | None:
        """Return what is wrong with a primary's head row, whatever it says about single rows."""
        if self._is_foreign(head):
            return ForeignDatabase(self.chain_id, str(self._database_id), str(head.database_id))
        if head.last_id < self.head.id:
            return PrimaryBehind(self.chain_id, head.last_id, self.head.id)
        return None

    def _refuse_other_chain(self, chain_id: int) -> None:
        """Raise SettingError for an answer about another chain: it says nothing about ours."""
        if chain_id != self.chain_id:
            raise SettingError("gap source's chain", chain_id, f"chain {self.chain_id}")

    def _is_foreign(self, head: ChainHead) -> bool:
        if self._database_id is None:
            self._database_id = head.database_id
        return head.database_id != self._database_id

    def _know(self, terms: Sequence[FrameTerm]) -> None:
        """Accept frames of `terms`, which are in order from the newest, and of no others."""
        self._frame_keys = {term.nonce: term.frame_key for term in terms[:NONCES_MAX]}

    # -- fills ---------------------------------------------------------------------------------

    def see_gap(self) -> None:
        """A frame shows that rows are missing, and the database has not been asked yet."""
        if self.state is State.LIVE:
            self.state = State.FILLING

    def deny_gap(self) -> None:
        """Drop the frame: what it reported is not there, or could not be read."""
        if self.state is State.FILLING:
            self.go_live()

    def open_fill(self, fill: Fill) -> None:
        """Begin to read the rows up to `fill.until_id`."""
        self.fill_until = fill.until_id
        self.fill_cause = fill.cause
        if fill.cause != "notice":  # no gap: rows of a chain without broker come this way
            self.state = State.CATCHING_UP if fill.cause == "start" else State.FILLING

    @property
    def is_filling(self) -> bool:
        """True if rows of an open fill are still to be read."""
        return self.fill_until > self.head.id

    def accept_filled(self, run: Run) -> Run | Halt:
        """Move the head over a run from the database, whose end the database has shown.

        Raises SettingError for a run of another chain.
        """
        self._refuse_other_chain(run.chain_id)
        if run.first_pid != self.head.id:
            first = run.events[0]
            return Halt(ForkFound(self.chain_id, first.pid, self.head.id, first.id))
        self.head = run.end
        self._prove(run.end)
        if not self.is_filling:
            self.go_live()
        return run

    def _leave_start(self) -> None:
        """Go live where frames follow our place, and no answer at the start has said so."""
        if self.state is State.CATCHING_UP and not self.is_filling:
            self.go_live()

    def go_live(self) -> None:
        """Stop filling: the rows are read, or the frame that reported them is dropped."""
        self.fill_until = self.head.id
        self.state = State.LIVE

    def halt(self, error: HaltError) -> None:
        """Stay where we are, permanently."""
        self.halted_by = error
        self.state = State.HALTED

    # -- a seal that contradicts ---------------------------------------------------------------

    @property
    def compared_from(self) -> Mark:
        """The place from which rows are read again when the database contradicts our seal.

        It has a seal that the database has shown: if the database contradicts that one, it
        contradicts itself, and no frame is to blame.
        """
        return self._proven_at(self._kept_after)

    def compare(self, rows: Sequence[Event], end: Mark) -> InStep | Halt:
        """Decide about `rows`, those after `compared_from` up to our head, which were read again.

        Equal rows under another seal: what was delivered is what was committed, the publisher was
        wrong only about the seal, and the database's seal is taken. Otherwise the chain halts.
        """
        delivered: dict[int, Event] = {}
        for header, record in self._kept:
            for event in decode_body(record, header):
                # A frame that was partly old repeats rows: the first one was delivered.
                delivered.setdefault(event.id, event)
        unique = [event for event in delivered.values() if event.id > self._kept_after]
        if not unique or list(rows) != unique or end.id != self.head.id:
            return Halt(SealMismatch(self.chain_id, self.head.id, self.head.seal, end.seal))
        self.head = end
        self._prove(end)
        return IN_STEP


def _linked_rows(record: bytes, header: FrameHeader) -> list[Event] | None:
    """Return the rows of a frame; None if they are not linked. Raises FrameError as documented."""
    try:
        return decode_linked_body(record, header)
    except FrameError as error:
        if error.reason != "link":
            raise
        return None


def _holds(standing: ChainPosition, held: Mark) -> bool:
    """Return whether the source has the row of `held`, and the seal of its batch.

    The seal covers the epoch.

    `standing` was read at both.
    """
    mark = standing.mark
    if mark is None or mark.id != held.id:
        return False
    if mark.batch_last_id == held.batch_last_id:
        return mark.seal == held.seal
    return mark.batch_last_id > held.batch_last_id and standing.batch_seal == held.seal
