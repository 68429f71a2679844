"""What receivers may do. All have one name, so they share a checkpoint.

The engine's core judges frames and readings, and its gap fill proves pages. What is asked when is
said here.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from msgspec.structs import replace

from chain_kernel.errors import CheckpointLost, HaltError, OrderchainError
from chain_kernel.frame import FrameHeader, decode_body, decode_header, encode_frame
from chain_kernel.model import ChainPosition, Event, Mark, Run
from chain_kernel.testing.memory_receiver import MemoryCheckpointStore, MemoryGapSource
from chain_kernel.testing.memory_store import MemoryDatabase
from gapfill.batch_proof import BatchMarks, CutPage, StoredBatch
from matcher_receiver.core import ReceiveCore
from matcher_receiver.decisions import Compare, Deliver, DeliverNewPart, Drop, Fill, Halt, InStep
from sequencer.publisher import heartbeat_frame
from tests.judge.receive import Effects, Receive
from tests.judge.rules import Diverged

from .stored import (
    BATCHES,
    CHAIN_ID,
    DATABASE_ID,
    GENESIS,
    chain_of,
    done_now,
    frames_of,
    seen_by,
    seen_row,
    term_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .explore import Outcomes
    from .sequencing import Left, Seen

    Gone = Iterator[tuple[str, "Receiver | str | None", "Place"]]

BEGIN: Final = Mark(id=0, batch_last_id=0, seal=GENESIS, epoch=0)
NAME: Final = "matching"


class Receiver(NamedTuple):
    """A receiver that has begun."""

    values: tuple[Any, ...]
    """Those of its ReceiveCore."""
    asked: Mark | None = None
    """The place that it has asked about beside."""
    is_contradicted: bool = False

    @property
    def core(self) -> ReceiveCore:
        """Return a core with these values."""
        core = ReceiveCore.__new__(ReceiveCore)
        vars(core).update(zip(FIELDS, self.values, strict=True))
        core._kept, core._frame_keys = deque(core._kept), dict(core._frame_keys)
        return core

    def now(self, core: ReceiveCore, **changes: Any) -> Receiver:
        """Return it with the values of `core`; what says nothing is alike in all.

        Records are kept for the day when the database contradicts a seal: here it never does.
        """
        values = {**vars(core), "_kept": (), "_kept_bytes": 0, "_kept_after": 0}
        values["_frame_keys"] = tuple(sorted(core._frame_keys.items()))
        values["fill_cause"] = "start" if core.fill_cause == "start" else "poll"
        if not core.is_filling:
            values["fill_until"], values["fill_cause"] = 0, "start"
        return self._replace(values=tuple(values[name] for name in FIELDS), **changes)


FIELDS: Final = tuple(vars(ReceiveCore(CHAIN_ID, BEGIN)))
ENDED: Final = "another one has moved its checkpoint"


class Place(NamedTuple):
    """The checkpoint, and how many rows have taken effect."""

    mark: Mark | None = None
    done: int = 0


class Receiving:
    """The steps of one receiver, in a world where this is done wrong."""

    def __init__(self, wrongs: frozenset[str]) -> None:
        self._wrongs = wrongs

    def steps(self, receiver: Receiver | str | None, seen: Seen, place: Place) -> Outcomes:
        """Yield what it may do. Raises Diverged where it waits for a frame, which may be lost."""
        if not isinstance(receiver, str):
            for said, after, moved in self._steps(receiver, seen, place):
                yield said, (after, seen, moved)

    def crash(self, receiver: Receiver | str | None, left: Left) -> Outcomes:
        if isinstance(receiver, Receiver) and left.crashes:
            yield "a receiver crashes", (None, left._replace(crashes=left.crashes - 1))

    def _steps(self, receiver: Receiver | None, seen: Seen, place: Place) -> Gone:
        is_waiting = seen.is_primary
        for said, after, moved in self._certain(receiver, seen, place):
            is_waiting &= (after, moved) == (receiver, place)
            yield said, after, moved
        if receiver is None:
            return
        head, last_id = receiver.core.head.id, chain_of(seen.logs[0]).last_id
        if is_waiting and head != last_id:
            raise Diverged("G14 delivered in the end", head, last_id)
        if not receiver.is_contradicted and not receiver.core.is_filling:
            for record in self._records(receiver.core, seen):
                yield from self._take_frame(receiver, record, seen, place)

    def _certain(self, receiver: Receiver | None, seen: Seen, place: Place) -> Gone:
        if receiver is None:
            core = ReceiveCore(CHAIN_ID, place.mark or BEGIN, DATABASE_ID)
            fresh = Receiver((), None).now(core)
            for said, after in self._look(fresh, seen, "start"):
                yield f"a receiver begins: {said}", after, place
            return
        core = receiver.core
        if receiver.asked is not None:
            for source in seen.sources():
                yield *self._hear(receiver, receiver.asked, source), place
        elif not core.is_proven:
            yield f"{name(core)} asks beside", receiver._replace(asked=core.head), place
        if core.is_filling and not receiver.is_contradicted:
            for source in seen.sources():
                yield from self._fill(receiver, source, seen, place)
        elif "silence" not in self._wrongs:
            for said, after in self._look(receiver, seen, "poll"):
                yield f"{name(core)} polls: {said}", after, place

    def _look(self, receiver: Receiver, seen: Seen, cause: Any) -> Iterator[tuple[str, Receiver]]:
        for source in seen.sources():
            core = receiver.core
            held = core.head
            decision = core.judge_standing(_standing(source, held.id, held.batch_last_id), cause)
            _go_on(core, decision)
            yield f"at {held.id}, {shown(decision)}", receiver.now(core, is_contradicted=False)

    def _hear(self, receiver: Receiver, asked: Mark, source: Any) -> tuple[str, Receiver]:
        core = receiver.core
        is_held = core.accept_proof(asked, _standing(source, asked.id, asked.batch_last_id))
        said = f"{name(core)} hears that {asked.id} is {'right' if is_held else 'wrong'}"
        return said, receiver.now(core, asked=None, is_contradicted=not is_held)

    def _fill(self, receiver: Receiver, source: Any, seen: Seen, place: Place) -> Gone:
        core = receiver.core
        run = _read(source, core.head, core.fill_until)
        if isinstance(run, Run):
            accepted = core.accept_filled(run)
            _go_on(core, accepted)
            yield from self._hand_on(receiver, core, run, seen, place)
        elif isinstance(run, HaltError):
            raise Diverged("G8 halt", run)

    def _hand_on(
        self, receiver: Receiver, core: ReceiveCore, run: Run, seen: Seen, place: Place
    ) -> Gone:
        """Hand `run` on; its effect and its checkpoint are one transaction.

        It happens at once: a crash in between is one before the run, and the checkpoint is compared
        when it moves.
        """
        head, log = receiver.core.head.id, seen.logs[0]
        rows = list(map(seen_row, run.events))
        receive = seen_by(Receive(GENESIS), log)
        receive.heads[NAME] = head
        receive.run(NAME, rows, (run.end.id, run.end.batch_last_id, run.end.seal))
        said = f"a receiver at {head} hands on rows up to {run.end.id}"
        mark = _saved(head, run.end, place.mark)
        if mark is None:
            yield f"{said}, and its checkpoint is another's", ENDED, place
            return
        if "checkpoint_before_delivery" in self._wrongs:
            yield f"{said}, and ends before its effect", None, Place(mark, place.done)
        effects = seen_by(Effects(), log)
        effects.done[NAME] = place.done
        effects.effect(NAME, rows)
        yield said, receiver.now(core), Place(mark, effects.done[NAME])

    # -- frames -----------------------------------------------------------------------------------

    def _records(self, core: ReceiveCore, seen: Seen) -> Iterator[bytes]:
        """Yield what the topic may bring: each frame, at any time, again and again."""
        for seal, base in seen.topic:
            term = term_of(base)
            yield from frames_of(seal, base)
            yield heartbeat_frame(term, last_id=BATCHES[seal].last_id, last_seal=seal)
            yield _forged(core.head, term)
            if "frame_believed_about_its_seal" in self._wrongs:
                record = frames_of(seal, base)[0]
                header = replace(decode_header(record), seal_after=bytes(32))
                yield encode_frame(header, decode_body(record, header), term.frame_key)

    def _take_frame(self, receiver: Receiver, record: bytes, seen: Seen, place: Place) -> Gone:
        core, header = receiver.core, decode_header(record)
        said = f"{name(core)} gets a {'frame of' if header.count else 'heartbeat at'} "
        said += str(header.last_id)
        decision = core.admit(header, record) or core.judge(header)
        if isinstance(decision, Deliver | DeliverNewPart):
            is_next = isinstance(decision, Deliver)
            run = (core.deliver if is_next else core.deliver_new_part)(header, record)
            if isinstance(run, Run):
                for then, after, moved in self._hand_on(receiver, core, run, seen, place):
                    yield f"{said}; {then}", after, moved
        elif isinstance(decision, InStep):
            yield said, receiver.now(core), place
        elif isinstance(decision, Fill):
            for source in seen.sources():
                core = receiver.core
                core.see_gap()
                found = core.judge_gap(_standing(source, decision.until_id), decision)
                _go_on(core, found)
                yield f"{said}; {shown(found)}", receiver.now(core), place


def name(core: ReceiveCore) -> str:
    return f"a receiver at {core.head.id}"


def shown(decision: Any) -> str:
    if isinstance(decision, Fill):
        return f"rows up to {decision.until_id} are missing"
    return "all is there" if isinstance(decision, InStep) else "the standby lags"


def _go_on(core: ReceiveCore, decision: Any) -> None:
    """Do what the core decided.

    Raises Diverged for a halt, and for a seal that contradicts: nothing is lost in this world.
    """
    if isinstance(decision, Halt | Compare):
        raise Diverged("G8 halt", decision)
    if isinstance(decision, Fill):
        core.open_fill(decision)
    elif isinstance(decision, Drop):
        core.deny_gap()


def _standing(source: MemoryGapSource, at_id: int, batch_id: int | None = None) -> ChainPosition:
    standing: ChainPosition = done_now(source.standing(at_id, batch_id))
    return standing


def _read(source: MemoryGapSource, after: Mark, until_id: int) -> Run | OrderchainError:
    """Return the next run of a fill, its end as gap fill proves it, or why there is none."""
    runs = source.runs(after, until_id)
    try:
        run: Run = done_now(runs.__anext__())
        done_now(runs.aclose())
    except OrderchainError as error:
        return error
    start = _standing(source, after.id).mark
    assert start is not None
    ahead = [
        StoredBatch(each.last_id, each.seal, each.epoch, each.first_id, each.row_count,
                    each.committed_at_us)
        for each in source._see().batches
        if each.last_id > after.id
    ]  # fmt: skip
    marks = BatchMarks(None, CHAIN_ID, start, ahead)  # type: ignore[arg-type]
    end, damaged = marks.take([CutPage(run.events)], start)
    return damaged or Run(chain_id=CHAIN_ID, events=run.events, end=end)


def _saved(first_pid: int, end: Mark, stored: Mark | None) -> Mark | None:
    """Return the checkpoint after a transaction; None where another one has moved it."""
    database = MemoryDatabase(DATABASE_ID.int)
    checkpoints = database.create(CHAIN_ID).checkpoints
    if stored is not None:
        checkpoints[NAME] = stored
    try:
        done_now(MemoryCheckpointStore(database, CHAIN_ID, NAME).save(first_pid, end))
    except CheckpointLost:
        return None
    return checkpoints[NAME]


def _forged(head: Mark, term: Any) -> bytes:
    """Return a frame of the next row, which copies the nonce of a leader, and lacks its key."""
    header = FrameHeader(
        chain_id=CHAIN_ID, epoch=term.epoch, publisher_epoch=term.epoch,
        publisher_nonce=term.nonce, first_pid=head.id, first_id=head.id + 1, last_id=head.id + 1,
        count=1, seal_before=head.seal, seal_after=bytes(32), is_batch_end=True,
    )  # fmt: skip
    return encode_frame(header, [Event(head.id + 1, head.id, "forged", 0, b"")], bytes(32))
