from __future__ import annotations

import pytest

from orderchain_demo.handlers import (
    HANDLERS,
    MATCHING,
    PAYLOADS,
    VENUE,
    PayloadDigest,
    handler_kind,
)
from orderchain_demo.preparation import COLUMNS

SSE_COLUMNS = (
    "seq", "ts_ms", "symbol", "action", "order_no", "contra_order_no", "side", "price_e4", "qty",
)  # fmt: skip


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        (COLUMNS, MATCHING),
        (SSE_COLUMNS, VENUE),
        (("time", "text"), PAYLOADS),
        ((), PAYLOADS),
        (COLUMNS[:-1], PAYLOADS),
    ],
)
def test_handler_kind_with_columns_is(columns: tuple[str, ...], expected: str) -> None:
    assert handler_kind(columns) == expected


def test_handlers_tell_what_they_do() -> None:
    assert len({handler().name for handler in HANDLERS.values()}) == 3


def test_payload_digest_with_dump_and_load_goes_on() -> None:
    payloads = [bytes([number]) * number for number in range(100)]
    whole, first, second = PayloadDigest(), PayloadDigest(), PayloadDigest()
    whole.apply(payloads)
    first.apply(payloads[:33])
    second.load(first.dump())
    second.apply(payloads[33:])
    assert second.digest() == whole.digest()
    assert second.counters() == {"payloads": 100}


@pytest.mark.parametrize(
    "payloads", [[b"a"], [b"b", b"a"], [b"ab"], [b"a", b"b", b""], [b"a", b"b", b"b"]]
)
def test_payload_digest_with_other_payloads_differs(payloads: list[bytes]) -> None:
    one, other = PayloadDigest(), PayloadDigest()
    one.apply([b"a", b"b"])
    other.apply(payloads)
    assert one.digest() != other.digest()
