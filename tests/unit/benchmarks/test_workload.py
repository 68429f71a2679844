from __future__ import annotations

from typing import get_args

import pytest

from benchmarks.load import KeyKind, Load, order_batches
from benchmarks.rivals.rival import NotWhole, Tally, bodies, decode_body, digest_of, linked


def test_orders_of_one_seed_are_the_same_for_every_arm() -> None:
    first = [batch for batch in order_batches(1_000, 100, payload_bytes=64, seed=3)]
    again = [batch for batch in order_batches(1_000, 100, payload_bytes=64, seed=3)]
    other = [batch for batch in order_batches(1_000, 100, payload_bytes=64, seed=4)]
    assert first == again
    assert first != other
    orders = [order for batch in first for order in batch]
    assert len({order.key for order in orders}) == 1_000
    assert len({order.payload for order in orders}) == 1_000
    assert all(len(order.payload) == 64 and order.payload.isascii() for order in orders)


@pytest.mark.parametrize("kind", get_args(KeyKind))
def test_keys_of_a_kind_are_all_different_and_the_same_again(kind: KeyKind) -> None:
    load = Load(rival="engine", orders=1_000, key_kind=kind)
    keys = [order.key for batch in load.batches(1_000) for order in batch]
    assert len(set(keys)) == 1_000
    assert keys == [order.key for batch in load.batches(1_000) for order in batch]


def test_tally_with_an_order_that_does_not_follow_refuses_it() -> None:
    events = linked([order for batch in order_batches(10, 5) for order in batch])
    tally = Tally(is_kept=True)
    tally.take(events[:4])
    with pytest.raises(NotWhole, match="order 6 follows 4"):
        tally.take(events[5:])
    tally.take(events[4:])
    assert tally.rows == 10
    assert tally.digest() == digest_of([events])


def test_digest_with_two_orders_swapped_is_another() -> None:
    (orders,) = order_batches(3, 3)
    assert digest_of([orders]) != digest_of([[orders[1], orders[0], orders[2]]])


def test_bodies_of_a_batch_too_large_for_a_record_hold_all_of_it_in_order() -> None:
    (orders,) = order_batches(1_000, 1_000, payload_bytes=1_024)
    events = linked(orders)
    pieces = list(bodies(events))
    assert len(pieces) > 1
    assert [event for piece in pieces for event in decode_body(piece)] == events


@pytest.mark.parametrize("orders", [1_000, 100_000])
def test_warm_up_is_of_whole_batches_and_at_least_two(orders: int) -> None:
    load = Load(rival="engine", orders=orders, batch_rows=1_000)
    assert load.warm_up_orders >= 2_000
    assert load.warm_up_orders % 1_000 == 0
