"""States as `chainctl state` shows them."""

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from chainctl.commands.state import readable


class Book:
    def __init__(self, **fields: object) -> None:
        self.__dict__ |= fields


@pytest.mark.parametrize(
    ("state", "shown"),
    [
        ({1: {"bid": Decimal("1.5")}, "a": (1, 2)}, {"1": {"bid": "1.5"}, "a": (1, 2)}),
        (Book(symbol="A", levels=[Book(price=3)]), {"symbol": "A", "levels": [{"price": 3}]}),
        ({"at": datetime(2026, 1, 31, tzinfo=UTC)}, {"at": "2026-01-31T00:00:00Z"}),
        ([1 + 2j], ["(1+2j)"]),
        ({(1, 2): 3}, "{(1, 2): 3}"),
    ],
)
def test_state_is_shown_by_its_fields(state: Any, shown: Any) -> None:
    assert readable(state) == shown


def test_state_that_holds_itself_is_shown_as_text() -> None:
    state: list[object] = []
    state.append(state)
    assert readable(state) == "[[...]]"
