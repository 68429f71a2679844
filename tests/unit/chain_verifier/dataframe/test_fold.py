"""Orders through a fold, in pieces of any size, with stored states among them."""

import itertools
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain_kernel.model import Event
from chain_verifier.dataframe.fold import Fold, Piece, Result, digest_of, run_fold

EVENTS = [Event(at + 1, at, f"k{at}", 0, bytes([at])) for at in range(40)]


def step(state: list[int], orders: list[Event]) -> tuple[list[int], list[tuple[int]]]:
    state += [order.id for order in orders]
    return state, [(order.id,) for order in orders if order.id % 10 == 0]


FOLD: Fold[list[int]] = Fold(start=lambda _: [], step=step, outputs="id BIGINT")


def results_of(pieces: list[Piece]) -> list[Result]:
    return list(run_fold(FOLD, iter(pieces)))


def stored(at: int, state: list[int] | None = None) -> Piece:
    digest = digest_of(list(range(1, at + 1)) if state is None else state)
    return Piece("a", (), at, digest)


@given(st.lists(st.integers(1, 39), unique=True))
def test_pieces_of_any_size_give_the_same_state_and_outputs(cuts: list[int]) -> None:
    bounds = [0, *sorted(cuts), 40]
    pieces = [Piece("a", EVENTS[a:b]) for a, b in itertools.pairwise(bounds)]
    *outputs, state = results_of(pieces)
    assert (state.kind, state.id, state.rows) == ("state", 40, 40)
    assert state.digest == digest_of(list(range(1, 41)))
    assert [output.output for output in outputs] == [(10,), (20,), (30,), (40,)]


def test_each_group_has_a_state_of_its_own() -> None:
    states = results_of([Piece("a", EVENTS[:3]), Piece("b", EVENTS[3:5]), Piece("b", EVENTS[5:6])])
    assert [(results.group, results.id, results.rows) for results in states] == [
        ("a", 3, 3),
        ("b", 6, 3),
    ]


def test_first_stored_state_that_differs_is_reported_once_with_the_last_equal_one() -> None:
    wrong = [0]
    pieces = [
        Piece("a", EVENTS[:10]), stored(10), Piece("a", EVENTS[10:20]), stored(20, wrong),
        Piece("a", EVENTS[20:30]), stored(30, wrong),
    ]  # fmt: skip
    (results,) = [each for each in results_of(pieces) if each.kind == "differs"]
    assert (results.id, results.equal_id, results.rows) == (20, 10, 20)
    assert results.digest == digest_of(list(range(1, 21)))
    assert results.stored == digest_of(wrong)


@pytest.mark.parametrize("state", [[], [9]])
def test_stored_state_before_the_first_order_is_compared_with_the_start(state: list[int]) -> None:
    results = results_of([stored(0, state), Piece("a", EVENTS[:1])])
    assert [each.id for each in results if each.kind == "differs"] == ([0] if state else [])


def test_stored_state_with_an_empty_digest_is_a_wrong_one() -> None:
    pieces = [Piece("a", EVENTS[:10]), Piece("a", (), 10, b""), Piece("a", EVENTS[10:])]
    differs, state = [each for each in results_of(pieces) if each.kind != "output"]
    assert (differs.kind, differs.id, differs.stored) == ("differs", 10, b"")
    assert (state.id, state.rows) == (40, 40)


@pytest.mark.parametrize(
    ("made", "module"),
    [
        (step, "tests"),
        (partial(partial(step)), "tests"),
        (lru_cache(step), "tests"),
        (lru_cache(partial(step)), "tests"),
        (partial(digest_of), None),
    ],
)
def test_modules_of_a_fold_are_those_of_what_its_functions_wrap(
    made: Callable[..., Any], module: str | None
) -> None:
    fold: Fold[Any] = Fold(start=list, step=made)
    assert fold.modules == ((module,) if module else ())
