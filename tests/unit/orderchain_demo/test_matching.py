from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from orderchain_demo.matching import Matching

Payload = Callable[..., bytes]
FlowPayloads = Callable[[int, int], list[bytes]]


def counters(*payloads: bytes) -> dict[str, int]:
    matching = Matching()
    matching.apply(payloads)
    return matching.counters()


@pytest.fixture
def new(row: Payload) -> Payload:
    def payload(order_no: str, side: str, price_e4: str, qty: str, symbol: str = "A") -> bytes:
        return row(
            action="new", symbol=symbol, order_no=order_no, side=side, price_e4=price_e4, qty=qty
        )

    return payload


@pytest.fixture
def cancel(row: Payload) -> Payload:
    return lambda order_no, symbol="A": row(action="cancel", symbol=symbol, order_no=order_no)


def test_apply_with_crossing_order_trades_and_lets_the_rest_rest(new: Payload) -> None:
    counted = counters(new("1", "S", "100", "10"), new("2", "B", "105", "25"))
    assert counted["trades"] == 1
    assert counted["quantity_traded"] == 10
    assert counted["resting_orders"] == 1


def test_apply_with_orders_of_two_symbols_never_matches_them(new: Payload) -> None:
    counted = counters(new("1", "S", "100", "10", "A"), new("2", "B", "100", "10", "B"))
    assert counted["trades"] == 0
    assert counted["resting_orders"] == 2


def test_apply_with_cancel_of_resting_order_takes_it_out(new: Payload, cancel: Payload) -> None:
    counted = counters(new("1", "S", "100", "10"), cancel("1"), new("2", "B", "100", "10"))
    assert (counted["cancels"], counted["trades"]) == (1, 0)


def test_apply_with_cancel_of_finished_or_unknown_order_counts_it(
    new: Payload, cancel: Payload
) -> None:
    counted = counters(
        new("1", "S", "100", "10"), new("2", "B", "100", "10"), cancel("1"), cancel("9")
    )
    assert (counted["cancels"], counted["cancels_unknown"]) == (0, 2)
    assert counted["refused"] == 0


def test_apply_with_rows_that_make_no_sense_counts_them_and_goes_on(
    new: Payload, row: Payload
) -> None:
    counted = counters(
        new("1", "S", "free", "10"),
        new("1", "S", "100", "-5"),
        new("1", "S", "100", "9" * 40),
        new("1", "X", "100", "10"),
        row(action="amend", symbol="A", order_no="1"),
        b"\xc1 no msgpack",
        b"\x93\x01\x02\x03",
        new("1", "S", "100", "10"),
        new("1", "S", "100", "10"),
    )
    assert counted["refused"] == 8
    assert counted["events"] == 9
    assert counted["resting_orders"] == 1


def test_trades_digest_shows_who_traded_though_books_are_alike(new: Payload) -> None:
    digests = set()
    for taker in ("2", "3"):
        matching = Matching()
        matching.apply([new("1", "S", "100", "10"), new(taker, "B", "100", "10")])
        digests.add(matching.digest())
    assert len(digests) == 2


def test_digest_with_the_same_flow_is_the_same_however_it_is_cut(
    flow_payloads: FlowPayloads,
) -> None:
    payloads = flow_payloads(11, 3_000)
    whole, pieces = Matching(), Matching()
    whole.apply(payloads)
    for start in range(0, len(payloads), 7):
        pieces.apply(payloads[start : start + 7])
    assert whole.digest() == pieces.digest()
    assert whole.counters()["trades"] > 100


def test_digest_with_one_event_left_out_differs(flow_payloads: FlowPayloads) -> None:
    payloads = flow_payloads(12, 2_000)
    whole = Matching()
    whole.apply(payloads)
    for left_out in Random(12).sample(range(len(payloads)), 20):
        lacking = Matching()
        lacking.apply(payloads[:left_out] + payloads[left_out + 1 :])
        assert lacking.digest() != whole.digest()


def test_digest_with_two_events_swapped_differs(flow_payloads: FlowPayloads) -> None:
    payloads = flow_payloads(13, 2_000)
    whole = Matching()
    whole.apply(payloads)
    for first in Random(13).sample(range(len(payloads) - 1), 20):
        swapped = Matching()
        swapped.apply(
            [*payloads[:first], payloads[first + 1], payloads[first], *payloads[first + 2 :]]
        )
        assert swapped.digest() != whole.digest()


def test_load_of_a_dump_goes_on_as_if_never_stopped(flow_payloads: FlowPayloads) -> None:
    payloads = flow_payloads(14, 4_000)
    whole, first = Matching(), Matching()
    whole.apply(payloads)
    first.apply(payloads[:1_777])
    second = Matching()
    second.load(first.dump())
    assert second.dump() == first.dump()
    second.apply(payloads[1_777:])
    assert second.digest() == whole.digest()
    assert second.counters() == whole.counters()


def test_load_of_something_else_raises() -> None:
    with pytest.raises(ValueError, match="Expected"):
        Matching().load(b"\x93\x01\x02\x03")


def test_memory_with_a_long_flow_is_bounded_by_what_rests(flow_payloads: FlowPayloads) -> None:
    matching = Matching()
    for start in range(40):
        matching.apply(flow_payloads(start, 500))
    resting = matching.counters()["resting_orders"]
    assert len(matching.dump()) < 200 + 40 * resting
