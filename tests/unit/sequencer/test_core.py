import pytest

from chain_kernel.errors import ClockError, OrderchainError
from chain_kernel.limits import ID_MAX
from sequencer.core import ClockWatch, SequencerCore
from sequencer.order import Order
from tests.builders.orders import make_orders

from .builders import WALL_NS, make_term

DAY_NS = 24 * 3600 * 10**9
YEAR_NS = 365 * DAY_NS
NOW_US = WALL_NS // 1_000
NOW_NS = NOW_US * 1_000


def core_at(last_id: int = 0, *, skip_ids: int = 0, partition_ids: int = 2**23) -> SequencerCore:
    term = make_term(last_id=last_id, partition_ids=partition_ids)
    return SequencerCore(term, takeover_skip_ids=skip_ids)


def test_first_batch_of_a_chain_starts_at_one_behind_pid_zero() -> None:
    batch = core_at(skip_ids=1_000).assemble(make_orders(3), WALL_NS)
    assert [(event.id, event.pid) for event in batch.events] == [(1, 0), (2, 1), (3, 2)]


def test_first_batch_after_a_take_over_skips_ids_once() -> None:
    core = core_at(50, skip_ids=1_000)
    first, second = core.assemble(make_orders(2), WALL_NS), core.assemble(make_orders(1), WALL_NS)
    assert (first.pid, first.first_id, first.last_id) == (50, 1_051, 1_052)
    assert (second.pid, second.first_id) == (1_052, 1_053)


def test_orders_without_a_time_get_the_wall_clock_and_others_keep_theirs() -> None:
    batch = core_at().assemble([Order("a", b""), Order("b", b"", 5)], WALL_NS)
    assert [event.event_time_ns for event in batch.events] == [WALL_NS, 5]


def test_committed_at_with_a_clock_that_steps_back_never_falls() -> None:
    core = core_at()
    first = core.assemble(make_orders(1), WALL_NS)
    second = core.assemble(make_orders(1), WALL_NS - 3_600 * 10**9)
    assert first.committed_at_us == WALL_NS // 1_000
    assert second.committed_at_us == first.committed_at_us


def test_chain_at_its_last_id_takes_no_more() -> None:
    assert core_at(ID_MAX - 2).assemble(make_orders(1), WALL_NS).last_id == ID_MAX - 1
    with pytest.raises(OrderchainError, match="no ids left"):
        core_at(ID_MAX - 2).assemble(make_orders(2), WALL_NS)


def test_clock_ahead_of_the_databases_is_warned_of_once_until_it_is_right_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    watch = ClockWatch()
    for ahead_ns, warnings in (
        (DAY_NS, 0),
        (DAY_NS + 1, 1),
        (2 * DAY_NS, 1),
        (0, 1),
        (2 * DAY_NS, 2),
    ):
        watch.warn_beside(NOW_NS + ahead_ns, NOW_US)
        assert caplog.text.count("days ahead of the database's") == warnings


def test_clock_is_refused_above_a_year_ahead_of_the_databases_and_of_where_it_was() -> None:
    watch = ClockWatch()
    watch.check_beside(NOW_NS + YEAR_NS, NOW_US)
    watch.check_jump(NOW_NS, 7)
    watch.check_jump(NOW_NS + YEAR_NS, 7)
    watch.check_jump(NOW_NS + 3 * YEAR_NS, 7 + 2 * YEAR_NS)
    with pytest.raises(ClockError, match="365 days ahead of the database's"):
        watch.check_beside(NOW_NS + YEAR_NS + 1, NOW_US)
    with pytest.raises(ClockError, match="365 days ahead of where it was"):
        watch.check_jump(NOW_NS + YEAR_NS + 1, 7)


def test_clock_that_no_row_can_hold_is_refused() -> None:
    for wall_ns in (0, 2**63 - 1):
        ClockWatch().check_jump(wall_ns, 0)
    for wall_ns in (-1, 2**63):
        with pytest.raises(ClockError, match="ns since 1970"):
            ClockWatch().check_jump(wall_ns, 0)
