"""A fold of small books: per side, the sum of what came."""

from collections.abc import Sequence
from functools import partial
from importlib import import_module
from typing import Any

import pyarrow as pa

from chain_kernel.errors import SettingError
from chain_kernel.model import Event
from chain_verifier.dataframe.fold import Fold

Book = dict[str, int]
PUT_STATE = """INSERT INTO receiver_state (chain_id, receiver, "group", id, digest)
               VALUES ($1, $2, $3, $4, $5)"""


def start(group: str) -> Book:
    return {"rows": 0, "last": 0, "name": len(group)}


def step(book: Book, orders: Sequence[Event]) -> tuple[Book, list[tuple[int, str]]]:
    """Give out the key of every order whose id is even."""
    given = []
    for order in orders:
        assert order.id > book["last"], "orders come in the order of ids"
        book["rows"] += 1
        book["last"] = order.id
        if order.id % 2 == 0:
            given.append((order.id, order.key))
    return book, given


def step_of_columns(book: Book, orders: pa.RecordBatch) -> tuple[Book, list[tuple[int, str]]]:
    """Apply the same to the columns of many orders."""
    ids = orders.column("id").to_pylist()
    assert [book["last"], *ids] == sorted([book["last"], *ids]), "orders come in the order of ids"
    book["rows"] += len(ids)
    book["last"] = ids[-1]
    return book, []


def is_odd(order: Event) -> bool:
    """Return whether the second version takes an order for another one."""
    return order.pid > 100 and len(order.payload) % 11 == 10


def second_step(book: Book, orders: Sequence[Event]) -> tuple[Book, list[tuple[int, str]]]:
    """Apply the same, but for one rule: an odd order counts twice."""
    book, given = step(book, orders)
    book["rows"] += sum(map(is_odd, orders))
    return book, given


def failing_step(book: Book, orders: Sequence[Event]) -> tuple[Book, list[tuple[int, str]]]:
    """Refuse an odd order."""
    for order in orders:
        if is_odd(order):
            raise ValueError("an odd order")
    return step(book, orders)


def step_from_the_first(book: Book, orders: Sequence[Event]) -> tuple[Book, list[tuple[int, str]]]:
    """Refuse to begin after the first order of a chain."""
    if not book["rows"] and orders[0].pid:
        raise ValueError("not the first order")
    return step(book, orders)


def importing_step(book: Book, orders: Sequence[Event]) -> tuple[Book, list[tuple[int, str]]]:
    """Need a module that is not there, once orders come."""
    import_module("no_such_module")
    return step(book, orders)


def setting_step(book: Book, orders: Sequence[Event]) -> tuple[Book, list[tuple[int, str]]]:
    """Refuse a setting of its own, once orders come."""
    raise SettingError("tick", "0", "a price")


def side_of(order: Event) -> str:
    return ("buy", "sell", "cancel")[len(order.payload) % 3]


def number_of(order: Event) -> Any:
    return len(order.payload) % 3


def symbol_of(order: Any) -> str:
    return str(order.symbol)


BOOKS = Fold(start=start, step=step, group=side_of, outputs="order_id BIGINT, order_key STRING")
SECOND = Fold(
    start=start, step=second_step, group=side_of, outputs="order_id BIGINT, order_key STRING"
)
SAME = Fold(start=start, step=step, group=side_of, outputs="order_id BIGINT, order_key STRING")
FAILING = Fold(start=start, step=failing_step, group=side_of)
IMPORTING = Fold(start=start, step=importing_step, group=side_of)
SETTING = Fold(start=start, step=setting_step, group=side_of)
NO_TYPES = Fold(start=start, step=step, group=side_of, outputs="order_id NUMBER, order_key STRING")
WRONG_TYPES = Fold(
    start=start, step=step, group=side_of, outputs="order_id BIGINT, order_key BIGINT"
)
FEW_TYPES = Fold(start=start, step=step, group=side_of, outputs="order_id BIGINT")
FROM_FIRST = Fold(start=start, step=step_from_the_first)
BY_NUMBER = Fold(start=start, step=step, group=number_of)
BY_SYMBOL = Fold(start=start, step=step, group=symbol_of)
BY_COLUMN = Fold(start=start, step=step_of_columns, columns=("id",))


def version_of(payload: bytes) -> int:
    return 2 if payload.startswith(b"v2:") else 1


def side_of_latest(order: Event) -> str:
    assert version_of(order.payload) == 2, "a group sees payloads as of today"
    return side_of(order)  # the step adds three bytes


def step_of_latest(book: Book, orders: Sequence[Event]) -> tuple[Book, list[tuple[int, str]]]:
    assert all(version_of(order.payload) == 2 for order in orders)
    return step(book, orders)


LATEST = Fold(
    start=start, step=step_of_latest, group=side_of_latest, version=version_of,
    upcasts={1: lambda payload: b"v2:" + payload},
)  # fmt: skip


def to_second(payload: bytes, rest: bytes) -> bytes:
    return b"v2:" + rest + payload


LONGER, MOVING = (
    Fold(
        start=start, step=step_of_latest, group=side_of_latest, version=version_of,
        upcasts={1: partial(to_second, rest=rest)},
    )
    for rest in (b"abc", b"a")
)  # fmt: skip
"""Its candidates with other steps: one gives the same groups, the other does not."""
