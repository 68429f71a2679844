"""Every cell of the receive state machine's table (docs/protocol.md, "Receiving")."""

from uuid import UUID

import msgspec
import pytest

from chain_kernel.errors import (
    ForeignDatabase,
    ForkFound,
    FrameError,
    HaltError,
    PrimaryBehind,
    SealMismatch,
    SettingError,
)
from chain_kernel.frame import FrameHeader
from chain_kernel.model import ChainPosition, Event, Mark, Run
from matcher_receiver.core import NONCES_MAX, ReceiveCore
from matcher_receiver.decisions import (
    CHECK_LINK,
    CHECK_SEAL,
    COMPARE,
    CONFIRM_NONCE,
    DELIVER,
    DROP_PHANTOM,
    IN_STEP,
    WAIT,
    Fill,
    Halt,
    State,
)
from tests.builders.chains import CHAIN_ID, Chain, decide, make_chain, signed

OTHER_DATABASE = UUID("9f2c2a52-7c5e-4e0a-9d53-0d1f2f0a7a11")
OTHER_SEAL = b"\7" * 32


def standing_of(chain: Chain, at_id: int, *, is_primary: bool = True) -> ChainPosition:
    mark = chain.mark(at_id) if at_id in (0, *chain.ids) else None
    return ChainPosition(head=chain.head(), mark=mark, is_primary=is_primary, terms=chain.terms)


def proven_at(chain: Chain, batch: int, row_id: int) -> Mark:
    """The place after a row, with the seal of a batch that the database has shown."""
    return msgspec.structs.replace(chain.mark(chain.batches[batch].last_id), id=row_id)


def core_at(chain: Chain, at_id: int) -> ReceiveCore:
    """A core that is at a row, lives, and knows the leader."""
    core = ReceiveCore(chain.chain_id, chain.mark(at_id))
    core.judge_standing(standing_of(chain, at_id), "start")
    core.go_live()
    return core


def altered(header: FrameHeader, **fields: object) -> FrameHeader:
    return msgspec.structs.replace(header, **fields)


@pytest.fixture
def chain() -> Chain:
    """Batches of 4, 6 and 5 rows."""
    return make_chain([4, 6, 5])


def first_slices(chain: Chain, batch: int, slice_rows: int = 3) -> list[FrameHeader]:
    return [header for header, _ in chain.headers(chain.batches[batch], slice_rows)]


def test_deliver_with_slices_moves_the_seal_only_at_the_end_of_the_batch(chain: Chain) -> None:
    core = core_at(chain, chain.batches[0].last_id)
    for header, events in chain.headers(chain.batches[1], 3):
        run = core.deliver(header, signed(header, events))
        assert isinstance(run, Run)
        assert run.events == events
        assert core.head == chain.mark(events[-1].id)
        assert run.end == proven_at(chain, 0, events[-1].id)


def test_deliver_with_unreadable_body_moves_nothing(chain: Chain) -> None:
    core = core_at(chain, chain.batches[0].last_id)
    header, events = chain.headers(chain.batches[1], 6)[0]
    lying = altered(header, count=header.count - 1)
    before = core.head
    with pytest.raises(FrameError):
        core.deliver(lying, signed(lying, events))
    assert core.head is before


def test_deliver_new_part_with_head_row_in_the_frame_gives_the_rows_behind(chain: Chain) -> None:
    header, events = chain.headers(chain.batches[1], 6)[0]
    core = core_at(chain, events[2].id)
    run = core.deliver_new_part(header, signed(header, events))
    assert isinstance(run, Run)
    assert run.events == events[3:]
    assert core.head == chain.mark(events[-1].id)
    assert run.end == proven_at(chain, 0, events[-1].id)


def test_deliver_new_part_without_the_head_row_checks(chain: Chain) -> None:
    header, events = chain.headers(chain.batches[1], 6)[0]
    core = core_at(chain, events[2].id)
    other = [*events[:2], Event(events[3].id, events[1].id, "k", 0, b""), *events[4:]]
    lying = altered(header, count=len(other))
    assert core.deliver_new_part(lying, signed(lying, other)) is CHECK_LINK
    assert core.head.id == events[2].id


@pytest.mark.parametrize("is_primary", [True, False])
def test_standby_makes_no_nonce_known(chain: Chain, *, is_primary: bool) -> None:
    core = ReceiveCore(CHAIN_ID, chain.mark())
    core.judge_standing(standing_of(chain, chain.mark().id, is_primary=is_primary), "start")
    known = decide(core, chain.heartbeat_header()) is not CONFIRM_NONCE
    assert known is is_primary


def contradicting(chain: Chain, fault: str, *, is_primary: bool) -> ChainPosition:
    """What a server says that contradicts those who are at the end of the chain."""
    standing = standing_of(chain, chain.mark().id, is_primary=is_primary)
    replace = msgspec.structs.replace
    return {
        "foreign": replace(standing, head=replace(standing.head, database_id=OTHER_DATABASE)),
        "behind": replace(standing, head=replace(standing.head, last_id=1), mark=None),
        "fork": replace(standing, mark=None),
        "seal": replace(standing, mark=replace(chain.mark(), seal=OTHER_SEAL)),
    }[fault]


FAULTS = {
    "foreign": ForeignDatabase,
    "behind": PrimaryBehind,
    "fork": ForkFound,
    "seal": SealMismatch,
}


@pytest.mark.parametrize("fault", FAULTS)
def test_only_a_primary_that_contradicts_halts(chain: Chain, fault: str) -> None:
    core = core_at(chain, chain.mark().id)
    assert core.judge_standing(contradicting(chain, fault, is_primary=False), "poll") is WAIT
    standing = contradicting(chain, fault, is_primary=True)
    assert error_of(core.judge_standing(standing, "poll"), FAULTS[fault])


def test_nonces_are_forgotten_oldest_first_beyond_the_bound(chain: Chain) -> None:
    core = core_at(chain, chain.mark().id)
    first = chain.heartbeat_header()
    for term in range(NONCES_MAX):
        chain.take_over(b"nonce of term %02d" % term)
        core.judge_standing(standing_of(chain, core.head.id), "poll")
        assert decide(core, chain.heartbeat_header()) is IN_STEP
    assert decide(core, first) is CONFIRM_NONCE


@pytest.mark.parametrize("is_primary", [True, False])
@pytest.mark.parametrize("what", ["there", "not there", "behind us", "another database"])
def test_only_the_primary_denies_a_gap(chain: Chain, what: str, *, is_primary: bool) -> None:
    core = core_at(chain, chain.mark().id if what == "behind us" else chain.batches[0].last_id)
    until_id = chain.mark().id + (0 if what in ("there", "another database") else 50)
    fill = Fill(until_id, "frame")
    if what == "behind us":
        chain.batches.pop()
    standing = standing_of(chain, until_id, is_primary=is_primary)
    if what == "another database":
        foreign = msgspec.structs.replace(standing.head, database_id=OTHER_DATABASE)
        standing = msgspec.structs.replace(standing, head=foreign)
    decision = core.judge_gap(standing, fill)
    if what == "there":
        assert decision == fill
    elif not is_primary:
        assert decision is WAIT
    elif what == "not there":
        assert decision is DROP_PHANTOM
    else:
        assert error_of(decision, PrimaryBehind if what == "behind us" else ForeignDatabase)


def run_of(chain: Chain, after_id: int, until_id: int) -> Run:
    events = [event for event in chain.events if after_id < event.id <= until_id]
    return Run(chain_id=chain.chain_id, events=events, end=chain.mark(until_id))


def test_state_goes_from_catching_up_through_filling_to_live(chain: Chain) -> None:
    core = ReceiveCore(CHAIN_ID, chain.mark(0))
    until_id = chain.batches[0].last_id
    middle = chain.batches[1].events[2].id
    states: list[State] = []
    core.open_fill(Fill(until_id, "start"))
    states.append(core.state)
    core.accept_filled(run_of(chain, 0, until_id))
    states.append(core.state)
    core.open_fill(Fill(chain.mark().id, "frame"))
    states.append(core.state)
    core.accept_filled(run_of(chain, until_id, middle))
    states.append(core.state)
    assert core.is_filling
    core.accept_filled(run_of(chain, middle, chain.mark().id))
    states.append(core.state)
    assert states == [
        State.CATCHING_UP, State.LIVE, State.FILLING, State.FILLING, State.LIVE
    ]  # fmt: skip
    assert core.head == chain.mark()


def test_gap_that_is_seen_or_denied_ends_no_start(chain: Chain) -> None:
    core = ReceiveCore(chain.chain_id, chain.mark(0))
    for change in (core.see_gap, core.deny_gap):
        change()
        assert core.state is State.CATCHING_UP


def test_filled_run_with_another_parent_halts_as_fork(chain: Chain) -> None:
    core = core_at(chain, chain.batches[0].last_id)
    decision = core.accept_filled(run_of(chain, chain.batches[1].last_id, chain.mark().id))
    assert error_of(decision, ForkFound)
    assert core.head.id == chain.batches[0].last_id


def deliver_with_seal(core: ReceiveCore, chain: Chain, batch: int, seal: bytes) -> None:
    for header, events in chain.headers(chain.batches[batch], 3):
        lying = altered(header, seal_after=seal) if header.is_batch_end else header
        assert isinstance(core.deliver(lying, signed(lying, events)), Run)


def test_seal_alone_wrong_is_replaced_by_the_databases(chain: Chain) -> None:
    core = core_at(chain, chain.batches[0].last_id)
    deliver_with_seal(core, chain, 1, OTHER_SEAL)
    assert decide(core, first_slices(chain, 2)[0]) is CHECK_SEAL
    assert core.judge_standing(standing_of(chain, core.head.id), "frame") is COMPARE
    assert core.compared_from == chain.mark(chain.batches[0].last_id), "the rows of all slices"
    run = run_of(chain, core.compared_from.id, core.head.id)
    assert core.compare(run.events, run.end) is IN_STEP
    assert core.head == chain.mark(core.head.id)
    assert decide(core, first_slices(chain, 2)[0]) is DELIVER


def test_seal_wrong_with_other_rows_halts(chain: Chain) -> None:
    core = core_at(chain, chain.batches[0].last_id)
    deliver_with_seal(core, chain, 1, OTHER_SEAL)
    run = run_of(chain, core.compared_from.id, core.head.id)
    forged = [*run.events[:-1], msgspec.structs.replace(run.events[-1], payload=b"other")]
    assert error_of(core.compare(forged, run.end), SealMismatch)


def test_run_of_frames_never_ends_with_a_seal_that_only_a_frame_has(chain: Chain) -> None:
    """Also when the frames after it agree with the wrong one."""
    core = core_at(chain, chain.batches[0].last_id)
    header, events = chain.headers(chain.batches[1], 6)[0]
    core.deliver(*framed(altered(header, seal_after=OTHER_SEAL), events))
    header, events = chain.headers(chain.batches[2], 6)[0]
    lying = altered(header, seal_before=OTHER_SEAL, seal_after=b"\6" * 32)
    run = core.deliver(*framed(lying, events))
    assert isinstance(run, Run)
    assert run.end == proven_at(chain, 0, events[-1].id)
    assert core.judge_standing(standing_of(chain, core.head.id), "poll") is COMPARE
    run = run_of(chain, core.compared_from.id, core.head.id)
    assert chain.proves(core.compared_from), "from where the database is read again"
    assert core.compare(run.events, run.end) is IN_STEP
    assert core.head == chain.mark()


def framed(header: FrameHeader, events: list[Event]) -> tuple[FrameHeader, bytes]:
    return header, signed(header, events)


@pytest.mark.parametrize("is_primary", [True, False])
def test_older_seal_that_holds_is_the_same_place(chain: Chain, *, is_primary: bool) -> None:
    """A place that was stored: a row, and the seal of a batch before its own."""
    place = proven_at(chain, 0, chain.batches[2].last_id)
    core = ReceiveCore(CHAIN_ID, place)
    standing = msgspec.structs.replace(
        standing_of(chain, place.id, is_primary=is_primary), batch_seal=place.seal
    )
    assert core.judge_standing(standing, "start") is IN_STEP
    assert core.head == (chain.mark() if is_primary else place)


@pytest.mark.parametrize("batch_seal", [None, OTHER_SEAL])
def test_older_seal_that_does_not_hold_halts(chain: Chain, batch_seal: bytes | None) -> None:
    place = proven_at(chain, 0, chain.batches[2].last_id)
    core = ReceiveCore(CHAIN_ID, place)
    standing = msgspec.structs.replace(standing_of(chain, place.id), batch_seal=batch_seal)
    assert error_of(core.judge_standing(standing, "start"), SealMismatch)


def test_proof_of_a_place_passed_since_is_what_runs_end_with(chain: Chain) -> None:
    core = core_at(chain, chain.batches[0].last_id)
    header, events = chain.headers(chain.batches[1], 6)[0]
    core.deliver(*framed(header, events))
    asked = core.head
    header, events = chain.headers(chain.batches[2], 6)[0]
    core.deliver(*framed(header, events))
    assert core.accept_proof(asked, standing_of(chain, asked.id))
    earlier = chain.mark(chain.batches[0].last_id)
    late = msgspec.structs.replace(standing_of(chain, earlier.id), terms=())
    assert core.accept_proof(earlier, late)
    assert core.compared_from == chain.mark(asked.id)
    header, events = chain.headers(chain.add(2), 6)[0]
    assert core.admit(*framed(header, events)) is None, "terms are those of our own head alone"
    run = core.deliver(*framed(header, events))
    assert isinstance(run, Run)
    assert run.end == proven_at(chain, 1, events[-1].id)


@pytest.mark.parametrize("fault", ["seal", "row", "database"])
def test_proof_that_contradicts_is_none(chain: Chain, fault: str) -> None:
    core = core_at(chain, chain.batches[0].last_id)
    deliver_with_seal(core, chain, 1, OTHER_SEAL if fault == "seal" else chain.batches[1].seal)
    standing = standing_of(chain, core.head.id)
    if fault == "row":
        standing = msgspec.structs.replace(standing, mark=None)
    if fault == "database":
        head = msgspec.structs.replace(standing.head, database_id=OTHER_DATABASE)
        standing = msgspec.structs.replace(standing, head=head)
    before = core.compared_from
    assert not core.accept_proof(core.head, standing)
    assert core.compared_from == before


def test_proof_of_a_standby_is_no_proof(chain: Chain) -> None:
    core = core_at(chain, chain.batches[0].last_id)
    deliver_with_seal(core, chain, 1, OTHER_SEAL)
    before = core.compared_from
    assert core.accept_proof(core.head, standing_of(chain, core.head.id, is_primary=False))
    assert core.compared_from == before


def test_run_and_standing_of_another_chain_are_refused(chain: Chain) -> None:
    core = core_at(chain, chain.batches[0].last_id)
    standing = standing_of(chain, core.head.id)
    head = msgspec.structs.replace(standing.head, chain_id=CHAIN_ID + 1)
    foreign = msgspec.structs.replace(standing, head=head)
    run = run_of(chain, core.head.id, chain.mark().id)
    before = core.head
    for refused in (
        lambda: core.judge_standing(foreign, "poll"),
        lambda: core.judge_gap(foreign, Fill(99, "frame")),
        lambda: core.accept_proof(core.head, foreign),
        lambda: core.accept_filled(msgspec.structs.replace(run, chain_id=CHAIN_ID + 1)),
    ):
        with pytest.raises(SettingError, match=f"was {CHAIN_ID + 1}, expected chain {CHAIN_ID}"):
            refused()
    assert core.head is before


def error_of(decision: object, kind: type[HaltError]) -> bool:
    return isinstance(decision, Halt) and type(decision.error) is kind
