"""The receive state machine: from values to decisions, with no I/O, no clock and no randomness.

The order of its questions is the protocol. A frame is first asked for its chain, then for its term
(the nonce), then for the MAC under that term's key, and only then for its ids: ids of a sender that
the database does not vouch for mean nothing. See `docs/protocol.md` for every cell.

Seals of frames are provisional. A receiver does not compute a seal, it compares: the seal before a
batch must be the one after the batch before. When the database later contradicts the seal alone,
the rows themselves are compared; only rows that differ halt. For that the core keeps the records of
the last batch that it delivered from frames, within `UNPROVEN_BYTES_MAX`.
"""

from __future__ import annotations

from bisect import bisect_left
from operator import attrgetter
from typing import TYPE_CHECKING, Final

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
    StandingDecision,
    State,
)
from orderchain.errors import (
    ForeignDatabase,
    ForkFound,
    FrameError,
    HaltError,
    PrimaryBehind,
    SealMismatch,
)
from orderchain.frame import decode_body, decode_linked_body, is_signed
from orderchain.mark import TERMS_MAX, Mark
from orderchain.run import Run

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from orderchain.event import Event
    from orderchain.frame import FrameHeader
    from orderchain.gap import Cause
    from orderchain.mark import ChainHead, FrameTerm, Standing

NONCES_MAX: Final = TERMS_MAX
"""Terms known at once, the newest. Frames of older ones are dropped, at the cost of a read."""

UNPROVEN_BYTES_MAX: Final = 16 * 1024 * 1024
"""Bytes of records kept to compare the last batch. A larger batch is not kept, and a contradiction
of its seal halts without a comparison: memory must stay bounded."""

_id_of = attrgetter("id")


class ReceiveCore:
    """Decides about each frame and each reading of the database, for one chain.

    Everything is called from one task, in the order in which it arrived.
    """

    def __init__(self, chain_id: int, start: Mark, database_id: UUID | None = None) -> None:
        self.chain_id = chain_id
        self.head = start
        """Behind the last row that was delivered. Its id never falls."""
        self.state = State.CATCHING_UP
        self.fill_until = start.id
        """Last id of the open fill; <= `head.id` when none is open."""
        self.fill_cause: Cause = "start"
        self.halted_by: HaltError | None = None
        # The one in which the place was stored; else the first one read.
        self._database_id = database_id
        # By nonce the keys of the terms that the primary vouched for when it last agreed with us.
        self._frame_keys: dict[bytes, bytes] = {}
        # Where the database last agreed with us or the last batch began, and the records that were
        # delivered behind it; None when they can't be compared.
        self._proven = start
        self._unproven: list[tuple[FrameHeader, bytes]] | None = []
        self._unproven_bytes = 0

    # -- frames --------------------------------------------------------------------------------

    def admit(self, header: FrameHeader, record: bytes) -> Drop | ConfirmNonce | None:
        """Decide whether a frame is a leader's; None when it is, and is to be judged."""
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
        # From here on the frame holds the next row, if it tells the truth. All slices of a batch
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
        # A heartbeat tells of a head, and a head is the end of a batch.
        if header.seal_before != head.seal or not head.is_batch_end:
            return CHECK_SEAL
        return IN_STEP

    def deliver(self, header: FrameHeader, record: bytes) -> Run | Check:
        """Move the head over a frame that was judged DELIVER, and return its rows.

        Raises FrameError when the body cannot be read; then nothing has moved.
        """
        events = _linked_rows(record, header)
        return CHECK_LINK if events is None else self._advance(header, record, events)

    def deliver_new_part(self, header: FrameHeader, record: bytes) -> Run | Check:
        """Move the head over a frame that was judged DELIVER_NEW_PART; return the rows behind it.

        The row of the head must be in the frame, or the frame tells of another chain than ours.
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
        return Run(chain_id=self.chain_id, events=events, end=end)

    def _remember(self, header: FrameHeader, record: bytes) -> None:
        """Keep `record` until the batch after it, or the database, agrees with its seal."""
        if self.head.is_batch_end:
            self._prove(self.head)
        self._unproven_bytes += len(record)
        if self._unproven is None or self._unproven_bytes > UNPROVEN_BYTES_MAX:
            self._unproven = None
        else:
            self._unproven.append((header, record))

    def _prove(self, mark: Mark) -> None:
        self._proven = mark
        self._unproven = []
        self._unproven_bytes = 0

    # -- the database --------------------------------------------------------------------------

    def judge_standing(self, standing: Standing, cause: Cause) -> StandingDecision:
        """Decide about what the database says of our own head (`standing` was read at its id).

        This is where terms become known: in one snapshot the primary tells of them, and holds the
        row and the seal that we hold. Those that it does not tell of are known no more.
        """
        head, mark = standing.head, standing.mark
        if not standing.is_primary:
            return self._judge_standby(standing, cause)
        error = self._contradiction(head)
        if error is None and mark is None:
            error = ForkFound(self.chain_id, self.head.batch_last_id, self.head.id, None)
        if error is not None:
            return Halt(error)
        if mark is None or not _is_same(mark, self.head):
            return self._judge_seal(mark)
        self.head = mark
        self._prove(mark)
        self._know(standing.terms)
        return self._in_step_or_fill(head, cause)

    def _judge_standby(self, standing: Standing, cause: Cause) -> StandingDecision:
        """What a standby lacks it may yet get; what it has, the fill will compare."""
        mark = standing.mark
        if self._is_foreign(standing.head) or mark is None or not _is_same(mark, self.head):
            return WAIT
        return self._in_step_or_fill(standing.head, cause)

    def _in_step_or_fill(self, head: ChainHead, cause: Cause) -> StandingDecision:
        if head.last_id > self.head.id:
            return Fill(head.last_id, cause)
        if self.state is State.CATCHING_UP:
            self.go_live()
        return IN_STEP

    def _judge_seal(self, mark: Mark | None) -> StandingDecision:
        if mark is None or not self._unproven:
            found = b"" if mark is None else mark.seal
            return Halt(SealMismatch(self.chain_id, self.head.id, self.head.seal, found))
        return COMPARE

    def judge_gap(self, standing: Standing, fill: Fill) -> GapDecision:
        """Decide whether rows that a frame tells of are there (`standing` was read at its pid).

        A commit comes before its publication. So what the primary lacks when it is read after the
        frame has arrived was never committed, and the frame is a phantom.
        """
        if not standing.is_primary:
            return WAIT if standing.mark is None or self._is_foreign(standing.head) else fill
        error = self._contradiction(standing.head)
        if error is not None:
            return Halt(error)
        return DROP_PHANTOM if standing.mark is None else fill

    def _contradiction(self, head: ChainHead) -> HaltError | None:
        """Return what is wrong with a primary's head row, whatever it says of single rows."""
        if self._is_foreign(head):
            return ForeignDatabase(self.chain_id, str(self._database_id), str(head.database_id))
        if head.last_id < self.head.id:
            return PrimaryBehind(self.chain_id, head.last_id, self.head.id)
        return None

    def _is_foreign(self, head: ChainHead) -> bool:
        if self._database_id is None:
            self._database_id = head.database_id
        return head.database_id != self._database_id

    def _know(self, terms: Sequence[FrameTerm]) -> None:
        """Believe frames of `terms`, the newest of which come first, and of no others."""
        self._frame_keys = {term.nonce: term.frame_key for term in terms[:NONCES_MAX]}

    # -- fills ---------------------------------------------------------------------------------

    def open_fill(self, fill: Fill) -> None:
        """Set out to read the rows up to `fill.until_id`."""
        self.fill_until = fill.until_id
        self.fill_cause = fill.cause
        self.state = State.CATCHING_UP if fill.cause == "start" else State.FILLING

    @property
    def is_filling(self) -> bool:
        """Whether rows of an open fill are still to be read."""
        return self.fill_until > self.head.id

    def accept_filled(self, run: Run) -> Run | Halt:
        """Move the head over a run of the database, whose end is the database's word."""
        if run.first_pid != self.head.id:
            first = run.events[0]
            return Halt(ForkFound(self.chain_id, first.pid, self.head.id, first.id))
        self.head = run.end
        self._prove(run.end)
        if not self.is_filling:
            self.go_live()
        return run

    def go_live(self) -> None:
        """Stop filling: the rows are read, or what told of them is dropped."""
        self.fill_until = self.head.id
        self.state = State.LIVE

    def halt(self, error: HaltError) -> None:
        """Stay where we stand, for good."""
        self.halted_by = error
        self.state = State.HALTED

    # -- a seal that contradicts ---------------------------------------------------------------

    @property
    def proven(self) -> Mark:
        """From where the rows must be read again when the database contradicts our seal."""
        return self._proven

    def compare(self, rows: Sequence[Event], end: Mark) -> InStep | Halt:
        """Decide, the rows behind `proven` up to our head having been read again.

        Equal rows under another seal: what was delivered is what was committed, the publisher was
        wrong about the seal alone, and the database's word is taken. Else the chain halts.
        """
        delivered: dict[int, Event] = {}
        for header, record in self._unproven or ():
            for event in decode_body(record, header):
                # A frame that was partly old repeats rows: the first one was handed on.
                delivered.setdefault(event.id, event)
        unique = [event for event in delivered.values() if event.id > self._proven.id]
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


def _is_same(left: Mark, right: Mark) -> bool:
    """Whether two marks tell of the same rows. The seal covers the epoch."""
    return (
        left.id == right.id
        and left.batch_last_id == right.batch_last_id
        and left.seal == right.seal
    )
