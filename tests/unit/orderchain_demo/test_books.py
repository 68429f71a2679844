"""The demo's books as a fold: each symbol alone gives the book that the whole exchange has."""

from __future__ import annotations

import msgspec

from chain_kernel.model import Event
from chain_verifier.dataframe.fold import Piece, run_fold
from orderchain_demo.book import Exchange
from orderchain_demo.books import BOOKS, symbol_of
from orderchain_demo.flow import order_flow


def events() -> list[Event]:
    flow = [
        {name: str(value) for name, value in row._asdict().items()} for row in order_flow(4, 900)
    ]
    payloads = [*map(msgspec.msgpack.encode, flow), b"no order", b""]
    return [Event(at + 1, at, f"k{at}", 0, payload) for at, payload in enumerate(payloads)]


def test_replay_by_symbol_gives_the_books_of_the_exchange() -> None:
    orders, exchange = events(), Exchange()
    exchange.apply(order.payload for order in orders)
    digests = exchange.take_touched()
    assert exchange.take_touched() == {}
    symbols = sorted(set(map(symbol_of, orders)))
    assert symbols[0] == ""
    pieces = (Piece(name, [e for e in orders if symbol_of(e) == name]) for name in symbols)
    replayed = {each.group: each.digest for each in run_fold(BOOKS, pieces)}
    assert {name: replayed[name] for name in digests} == digests
    assert len(set(digests.values())) == len(digests) > 4


def test_lost_order_changes_the_digest_of_one_book_alone() -> None:
    exchange = Exchange()
    exchange.apply(order.payload for order in events())
    right = exchange.take_touched()
    exchange.lose_an_order()
    (symbol,) = wrong = exchange.take_touched()
    assert wrong[symbol] != right[symbol]
    assert {name: exchange.book_digest(name) for name in right} == right | wrong
