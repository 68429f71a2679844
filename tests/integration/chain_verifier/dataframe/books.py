"""A fold of small books: per side, the sum of what came."""

from collections.abc import Sequence

import pyarrow as pa

from chain_kernel.model import Event
from chain_verifier.dataframe.fold import Fold

Book = dict[str, int]


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


def side_of(order: Event) -> str:
    return ("buy", "sell", "cancel")[len(order.payload) % 3]


BOOKS = Fold(start=start, step=step, group=side_of, outputs="order_id BIGINT, order_key STRING")
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
