"""Which waits count, and which queue grows."""

import numpy as np
import pytest

from benchmarks.waits import Schedule, spread_out

MS = 1_000_000
SCHEDULE = Schedule(start_ns=5_000 * MS, rate_per_second=1_000.0, orders=4_000, warm_up_orders=10)


def test_wait_counts_from_when_an_order_was_due_and_the_warm_up_not_at_all() -> None:
    waits = SCHEDULE.waits_ns(SCHEDULE.due_ns() + 7 * MS)
    assert len(waits) == 3_990
    assert set(waits.tolist()) == {7 * MS}


def test_stall_takes_out_what_waited_in_it_and_for_as_long_again() -> None:
    due = SCHEDULE.due_ns()
    done = due + 2 * MS
    began, ended = 6_000 * MS, 6_050 * MS
    done[(done >= began) & (due <= ended)] = ended + MS
    waits = SCHEDULE.undisturbed(done, [(began, ended)])
    assert waits.max() == 2 * MS
    # Due from 2 ms before the stall, until 50 ms after it.
    assert len(waits) == 3_990 - 103
    assert len(SCHEDULE.undisturbed(done, [])) == 3_990


@pytest.mark.parametrize(
    ("rate_done", "grows"),
    [(1_000.0, False), (950.0, True), (700.0, True)],
)
def test_queue_grows_where_less_is_done_than_falls_due(rate_done: float, grows: bool) -> None:
    done = SCHEDULE.start_ns + (np.arange(1, 4_001) * (1e9 / rate_done)).astype(np.int64)
    assert SCHEDULE.queue_grows(done) is grows


def test_queue_that_a_stall_made_and_that_is_worked_off_does_not_grow() -> None:
    due = SCHEDULE.due_ns()
    done, begun = due + MS, 3_300
    # Nothing for 100 ms, then twice as many as fall due.
    done[begun : begun + 200] = done[begun] + 100 * MS + np.arange(200) * MS // 2
    assert not SCHEDULE.queue_grows(done)


def test_samples_are_spread_over_the_orders_that_were_done_by_then() -> None:
    assert spread_out([(10, 2), (20, 2), (30, 5)]).tolist() == [10, 10, 30, 30, 30]
    assert spread_out([]).tolist() == []
