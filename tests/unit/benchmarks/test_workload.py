from typing import get_args

import pytest

from benchmarks.load import KeyKind, Load
from benchmarks.rivals.rival import NotWhole, RowCounter, bodies, decode_body, linked
from sequencer import Order


def orders_of(count: int, **fields: object) -> list[Order]:
    load = Load(rival="engine", orders=count, batch_rows=100, **fields)  # type: ignore[arg-type]
    return [order for batch in load.batches(count) for order in batch]


def test_orders_of_one_seed_are_the_same_for_every_arm() -> None:
    orders = orders_of(1_000, seed=3)
    assert orders == orders_of(1_000, seed=3) != orders_of(1_000, seed=4)
    assert len({order.key for order in orders}) == 1_000
    assert len({order.payload for order in orders}) == 1_000
    assert all(len(order.payload) == 64 and order.payload.isascii() for order in orders)


@pytest.mark.parametrize("kind", get_args(KeyKind))
def test_keys_of_a_kind_are_all_different_and_the_same_again(kind: KeyKind) -> None:
    keys = [order.key for order in orders_of(1_000, key_kind=kind)]
    assert len(set(keys)) == 1_000
    assert keys == [order.key for order in orders_of(1_000, key_kind=kind)]


def test_tally_with_an_order_that_does_not_follow_refuses_it() -> None:
    events, counter = linked(orders_of(10)), RowCounter()
    counter.take(events[:4])
    with pytest.raises(NotWhole, match="order 6 follows 4"):
        counter.take(events[5:])
    counter.take(events[4:])
    assert counter.rows == 10


def test_bodies_of_a_batch_too_large_for_a_record_hold_all_of_it_in_order() -> None:
    events = linked(orders_of(1_000, payload_bytes=1_024))
    pieces = list(bodies(events))
    assert len(pieces) > 1
    assert [event for piece in pieces for event in decode_body(piece)] == events


@pytest.mark.parametrize("orders", [1_000, 100_000])
def test_warm_up_is_of_whole_batches_and_at_least_two(orders: int) -> None:
    load = Load(rival="engine", orders=orders, batch_rows=1_000)
    assert load.warm_up_orders >= 2_000
    assert load.warm_up_orders % 1_000 == 0
