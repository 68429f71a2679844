from __future__ import annotations

from collections.abc import Callable

import pytest

from orderchain_demo.handlers import Venue

Payload = Callable[..., bytes]


@pytest.fixture
def fact(row: Payload) -> Payload:
    def payload(
        action: str, order_no: str, qty: str, side: str = "B", contra: str = "", price: str = "100"
    ) -> bytes:
        return row(
            seq="1", ts_ms="1", symbol="600000.SH", action=action, order_no=order_no,
            contra_order_no=contra, side=side, price_e4=price, qty=qty,
        )  # fmt: skip

    return payload


def venue_after(*payloads: bytes) -> Venue:
    venue = Venue()
    venue.apply(payloads)
    return venue


def test_apply_with_crossing_adds_lets_both_rest(fact: Payload) -> None:
    counted = venue_after(
        fact("A", "1", "10", "B", price="200"), fact("A", "2", "10", "S", price="100")
    ).counters()
    assert (counted["adds"], counted["resting_orders"], counted["trades"]) == (2, 2, 0)


def test_apply_with_trade_reduces_whichever_named_order_rests(fact: Payload) -> None:
    venue = venue_after(fact("A", "1", "10"), fact("T", "1", "4", contra="2"))
    assert venue.counters()["trades_not_resting"] == 0
    venue.apply([fact("T", "3", "6", contra="1")])
    assert venue.counters()["resting_orders"] == 0
    assert venue.counters()["quantity_traded"] == 10


def test_apply_with_trade_of_two_resting_orders_reduces_both(fact: Payload) -> None:
    counted = venue_after(
        fact("A", "1", "10"), fact("A", "2", "10", "S"), fact("T", "1", "10", "N", contra="2")
    ).counters()
    assert counted["resting_orders"] == 0
    assert counted["trades"] == 1


def test_apply_with_trade_before_its_order_is_added_counts_it(fact: Payload) -> None:
    counted = venue_after(fact("T", "1", "4", contra="2"), fact("A", "1", "6")).counters()
    assert (counted["trades_not_resting"], counted["resting_orders"]) == (1, 1)


def test_apply_with_trade_of_more_than_rests_removes_and_counts(fact: Payload) -> None:
    counted = venue_after(fact("A", "1", "3"), fact("T", "1", "4", contra="2")).counters()
    assert (counted["trades_overfilling"], counted["resting_orders"]) == (1, 0)


def test_apply_with_deletes_removes_and_counts_the_unknown(fact: Payload) -> None:
    counted = venue_after(fact("A", "1", "3"), fact("D", "1", "3"), fact("D", "1", "3")).counters()
    assert (counted["deletes"], counted["deletes_unknown"]) == (1, 1)


def test_apply_with_rows_that_make_no_sense_counts_them(fact: Payload) -> None:
    counted = venue_after(
        fact("A", "1", ""), fact("T", "1", "x"), fact("Z", "1", "1"), fact("A", "1", "1", "N"),
        fact("A", "1", "1"), fact("A", "1", "1"),
    ).counters()  # fmt: skip
    assert (counted["refused"], counted["events"]) == (5, 6)


def test_load_of_a_dump_goes_on_as_if_never_stopped(fact: Payload) -> None:
    facts = [fact("A", str(number), "9", "BS"[number % 2]) for number in range(50)]
    facts += [fact("T", str(number), "4", contra=str(number + 7)) for number in range(40)]
    facts += [fact("D", str(number), "1") for number in range(20)]
    whole, first, second = venue_after(*facts), venue_after(*facts[:71]), Venue()
    second.load(first.dump())
    second.apply(facts[71:])
    assert second.dump() == whole.dump()
    assert second.digest() == whole.digest()


def test_digest_with_facts_swapped_or_left_out_differs(fact: Payload) -> None:
    facts = [fact("A", "1", "9"), fact("A", "2", "9"), fact("T", "1", "4", contra="2")]
    digests = {
        venue_after(*variant).digest()
        for variant in (facts, facts[::-1], [facts[1], facts[0], facts[2]], facts[:2], facts[1:])
    }
    assert len(digests) == 5
