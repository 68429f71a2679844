from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from orderchain_demo.preparation import COLUMNS, order_flow

Payload = Callable[..., bytes]


@pytest.fixture
def flow_payloads() -> Callable[[int, int], list[bytes]]:
    """Gives the payloads of a generated flow, as the intake of a file makes them."""

    def payloads(seed: int, orders: int) -> list[bytes]:
        return [
            msgspec.msgpack.encode(dict(zip(COLUMNS, map(str, order), strict=True)))
            for order in order_flow(seed, orders)
        ]

    return payloads


@pytest.fixture
def row() -> Payload:
    """Gives the payload of one row of text."""
    return lambda **columns: msgspec.msgpack.encode(columns)
