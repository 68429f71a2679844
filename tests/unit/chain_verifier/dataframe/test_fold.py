"""Orders through a fold, in pieces of any size, with stored states among them."""

import itertools
from collections.abc import Callable
from functools import lru_cache, partial
from operator import attrgetter
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain_kernel.errors import InputError, SettingError
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


def test_modules_of_a_fold_have_what_restores_a_state() -> None:
    functions: dict[str, Any] = {"step": partial(digest_of), "restore": stored}
    restored: Fold[Any] = Fold(start=list, **functions)
    assert restored.modules == ("tests",)


@pytest.mark.parametrize(
    ("broken", "named"),
    [
        ("start", "start of the fold for group 'a'"),
        ("step", "result of the fold over the orders after 10 up to 40 of group 'a'"),
        ("version", "version of the orders 11 to 40"),
        ("digest", "digest of the state after id 40 of group 'a'"),
    ],
)
def test_fold_that_raises_is_refused_naming_orders_and_group(broken: str, named: str) -> None:
    def fail(given: Any, *_: Any) -> Any:
        is_early = broken == "version" and given == EVENTS[0].payload
        if is_early or (broken == "step" and not given):
            return {"version": 2, "step": ([1], ())}[broken]
        raise KeyError("qty")

    functions: dict[str, Any] = {"start": lambda _: [], "step": step, broken: fail}
    if broken == "version":
        functions["upcasts"] = {1: newer}
    pieces = [Piece("a", EVENTS[:1] * 9 + EVENTS[9:10]), Piece("a", EVENTS[10:])]
    if broken == "version":
        pieces[0] = Piece("a", EVENTS[:1])
    with pytest.raises(InputError, match=f"{named} was .*KeyError: 'qty'.*, expected no error"):
        list(run_fold(Fold(**functions), iter(pieces)))


def test_digest_is_bytes() -> None:
    def hex_text(_: list[int]) -> Any:
        return "0a"

    text = Fold(start=lambda _: list[int](), step=step, digest=hex_text)
    expected = "digest of the state after id 40 of group 'a' was 'str', expected bytes"
    for pieces in ([Piece("a", EVENTS)], [Piece("a", EVENTS), stored(40)]):
        with pytest.raises(InputError, match=expected):
            list(run_fold(text, iter(pieces)))


def test_group_is_a_text() -> None:
    fold: Fold[Any] = Fold(start=list, step=step, group=lambda order: order.key)
    assert fold.groups_of(EVENTS[:2]) == ["k0", "k1"]
    assert FOLD.groups_of(EVENTS[:2]) == ["", ""]
    numbers: Fold[Any] = Fold(start=list, step=step, group=attrgetter("id"))
    with pytest.raises(InputError, match="group of the order 3 was 3, expected a text"):
        numbers.groups_of(EVENTS[2:])
    failing: Fold[Any] = Fold(start=list, step=step, group=attrgetter("price"))
    with pytest.raises(InputError, match=r"group of the orders 3 to 40 was .*AttributeError"):
        failing.groups_of(EVENTS[2:])


def newer(payload: bytes) -> bytes:
    return bytes([payload[0] + 1]) + payload[1:]


LADDER: Fold[Any] = Fold(
    start=list, step=step, version=lambda payload: payload[0], upcasts={1: newer, 3: newer}
)


def test_payload_climbs_the_steps_up_to_the_latest_version() -> None:
    two_steps = {1: newer, 2: newer}
    fold: Fold[Any] = Fold(start=list, step=step, version=LADDER.version, upcasts=two_steps)
    assert [fold.upcast(bytes([at]) + b"x") for at in (1, 2, 3, 4)] == [
        b"\3x", b"\3x", b"\3x", b"\4x",
    ]  # fmt: skip
    assert FOLD.upcast(b"\1x") == b"\1x"


def test_version_without_a_step_is_refused() -> None:
    for version in (0, 1, 2):  # the step of 1 leads to 2
        with pytest.raises(InputError, match="expected one of 1, 3, or a later one"):
            LADDER.upcast(bytes([version]))


def test_step_that_does_not_raise_the_version_is_refused() -> None:
    for step_of_1 in (bytes, lambda _: b"\0"):
        fold: Fold[Any] = Fold(
            start=list, step=step, version=LADDER.version, upcasts={1: step_of_1}
        )
        with pytest.raises(InputError, match="version after the upcast of 1 was"):
            fold.upcast(b"\1")


@pytest.mark.parametrize("given", [{"version": len}, {"upcasts": {1: newer}}])
def test_ladder_needs_both_the_version_and_the_steps(given: dict[str, Any]) -> None:
    with pytest.raises(SettingError, match="of the fold was not given"):
        Fold(start=list, step=step, **given)


def test_columns_are_those_of_an_order() -> None:
    expected = "columns of the fold was 'price', expected some of id, pid, key, event_time_ns, pay"
    with pytest.raises(SettingError, match=expected):
        Fold(start=FOLD.start, step=step, columns=("id", "price"))


def test_columns_reach_the_fold_in_the_latest_version() -> None:
    def collect(state: list[bytes], rows: pa.RecordBatch) -> tuple[list[bytes], tuple[()]]:
        return state + rows.column("payload").to_pylist(), ()

    fold: Fold[Any] = Fold(
        start=lambda _: [], step=collect, version=LADDER.version, upcasts={1: newer},
        columns=("id", "payload"),
    )  # fmt: skip
    rows = pa.record_batch({"id": [1, 2], "payload": [b"\1a", b"\2b"]})
    (state,) = run_fold(fold, iter([Piece("", rows, last_id=2)]))
    assert state.digest == digest_of([b"\2a", b"\2b"])
