"""Fields in which two states differ, of the classes that states have."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
from msgspec import Struct

from chain_verifier.dataframe.state_fields import field_differences


class Resting(Struct, array_like=True):
    """An order that rests."""

    number: str
    quantity: int


@dataclass
class Side:
    """A dataclass."""

    orders: list[Resting]


class Level(NamedTuple):
    """A tuple with names."""

    price: int
    quantity: int


class Slotted:
    """An object with slots, and a function that is no part of its state."""

    __slots__ = ("_side", "hook")

    def __init__(self, side: Any) -> None:
        self._side, self.hook = side, lambda: None


def differences(one: object, other: object) -> list[tuple[str, str, str]]:
    found = field_differences(one, other)
    return [(each.field, each.value, each.candidate) for each in found]


@pytest.mark.parametrize(
    ("one", "other", "found"),
    [
        ({"a": 1}, {"a": 1}, []),
        (1, 2, [("", "1", "2")]),
        (1, 1.0, [("", "1", "1.0")]),
        (float("nan"), float("nan"), []),
        ({"a": {"b": 1}}, {"a": {"b": 2, "c": 3}}, [("a.b", "1", "2"), ("a.c", "nothing", "3")]),
        ({1: b"\x01"}, {1: b"\x02"}, [("1", "01", "02")]),
        ({"a": 1}, [1], [("", "{'a': 1}", "[1]")]),
        ([1, 2, 3, 4], [2, 3, 4], [("[0]", "1", "nothing")]),
        ([1, 2, 3], [1, 2, 9, 3], [("[2]", "nothing", "9")]),
        ([1, 5, 3], [1, 6, 3], [("[1]", "5", "6")]),
        (Resting("a", 1), Resting("a", 2), [("quantity", "1", "2")]),
        (Level(1, 2), Level(1, 3), [("quantity", "2", "3")]),
        (
            Side([Resting("a", 1), Resting("b", 2)]),
            Side([Resting("a", 1), Resting("b", 3)]),
            [("orders[1].quantity", "2", "3")],
        ),
        (Slotted({"x": 1}), Slotted({"x": 2}), [("_side.x", "1", "2")]),
        (np.array([1, 2]), np.array([1, 3]), [("[1]", "2", "3")]),
        ({1, 2}, {1}, [("", "{1, 2}", "{1}")]),
    ],
)
def test_fields_are_named_with_both_values(
    one: object, other: object, found: list[tuple[str, str, str]]
) -> None:
    assert differences(one, other) == found


def test_part_that_a_state_has_twice_is_compared_once() -> None:
    one, other = Resting("a", 1), Resting("a", 2)
    states = (
        {"by number": {"a": one}, "level": [one]},
        {"by number": {"a": other}, "level": [other]},
    )
    assert differences(*states) == [("by number.a.quantity", "1", "2")]


def test_state_that_refers_to_itself_ends() -> None:
    one, other = Slotted(None), Slotted(None)
    one._side, other._side = [one, 1], [other, 2]
    assert differences(one, other) == [("_side[1]", "1", "2")]


def test_long_value_is_cut() -> None:
    ((_, value, _),) = differences("x" * 1_000, "y")
    assert len(value) == 200
