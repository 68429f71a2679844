"""Two folds over the same orders: the first order after which they differ, as naively compared."""

import itertools
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from chain_kernel.errors import InputError, SettingError
from chain_kernel.model import Event
from chain_verifier.dataframe.fold import Fold, Piece, Result, digest_of, run_fold
from chain_verifier.dataframe.two_folds import (
    Divergence,
    Rows,
    TwoFoldsGroup,
    require_two,
    run_two_folds,
)

COUNT = 60
EVENTS = [Event(3 * at + 2, at, f"k{at}", 0, bytes([at % 7])) for at in range(COUNT)]
IDS = [event.id for event in EVENTS]

State = dict[str, Any]
Step = Callable[[State, Sequence[Event]], tuple[State, list[tuple[Any, ...]]]]


def step(state: State, orders: Sequence[Event], *, odd: Sequence[int] = (), say: Sequence[int] = (),
         back: int = 0, fail: int = 0) -> tuple[State, list[tuple[Any, ...]]]:  # fmt: skip
    """Sum payloads; at ids `odd` add one more until the id `back`; say something else at `say`."""
    given = []
    for order in orders:
        if order.id == fail:
            raise KeyError("qty")
        state["sum"] += order.payload[0]
        state["more"] += order.id in odd
        state["seen"].append(order.id)
        if order.id == back:
            state["more"] = 0
        if order.id % 5 == 0 or order.id in say:
            given.append((order.id, state["sum"] + (order.id in say)))
    return state, given


def fold_of(**changes: Any) -> Fold[State]:
    return Fold(
        start=lambda _: {"sum": 0, "more": 0, "seen": []},
        step=partial(step, **changes),
        outputs="id BIGINT, sum BIGINT",
    )


OLD = fold_of()


def rows_of(events: Sequence[Event], cuts: Sequence[int] = (), group: str = "a") -> list[Rows]:
    bounds = [0, *sorted({cut for cut in cuts if 0 < cut < len(events)}), len(events)]
    parts = [events[a:b] for a, b in itertools.pairwise(bounds)]
    return [Rows(group, [event.id for event in part], (part, part)) for part in parts]


def results_of(new: Fold[Any], rows: list[Rows], every: int | None = None,
               old: Fold[Any] = OLD) -> list[Result]:  # fmt: skip
    return list(run_two_folds((old, new), rows, every))


def found_in(results: list[Result]) -> Divergence | None:
    found = [each.divergence for each in results if each.kind == "diverges"]
    assert len(found) <= 1
    return found[0] if found else None


def naive(old: Fold[Any], new: Fold[Any], events: Sequence[Event]) -> int | None:
    """Compare states and outputs after each single order."""
    one, other = old.start("a"), new.start("a")
    for event in events:
        one, given = old.step(one, [event])
        other, others = new.step(other, [event])
        if list(given) != list(others) or old.digest(one) != new.digest(other):
            return event.id
    return None


places = st.lists(st.sampled_from(IDS), max_size=3)


@given(places, places, st.lists(st.integers(1, COUNT - 1)), st.sampled_from([None, 1, 2, 7, 59]))
def test_first_id_is_that_of_the_naive_comparison(
    odd: list[int], say: list[int], cuts: list[int], every: int | None
) -> None:
    new = fold_of(odd=odd, say=say)
    found = found_in(results_of(new, rows_of(EVENTS, cuts), every))
    expected = naive(OLD, new, EVENTS)
    assert (found.id if found else None) == expected
    if found is not None:
        at = IDS.index(found.id)
        assert (found.rows, found.equal_id) == (at + 1, IDS[at - 1] if at else 0)
        assert found.part == ("output" if found.id in say else "state")


@given(st.sampled_from(IDS), st.sampled_from(IDS), st.lists(st.integers(1, COUNT - 1)))
def test_difference_that_goes_away_is_found_where_each_order_is_compared(
    odd: int, back: int, cuts: list[int]
) -> None:
    new = fold_of(odd=[odd], back=back)
    found = found_in(results_of(new, rows_of(EVENTS, cuts), 1))
    assert (found.id if found else None) == naive(OLD, new, EVENTS)


def test_difference_that_goes_away_is_found_if_it_is_there_at_a_comparison() -> None:
    new = fold_of(odd=[IDS[9], IDS[30]], back=IDS[17])
    (found, later) = (found_in(results_of(new, rows_of(EVENTS), every)) for every in (None, 20))
    assert found is not None
    assert later is not None
    assert (found.id, later.id) == (IDS[9], IDS[30])


def test_first_id_among_many_orders_is_found_by_halves() -> None:
    events = [Event(at + 1, at, "k", 0, b"\1") for at in range(10_000)]
    new = fold_of(odd=[7_777])
    found = found_in(results_of(new, rows_of(events), 6_000))
    assert found is not None
    assert (found.id, found.equal_id, found.rows) == (7_777, 7_776, 7_777)


@given(places, st.lists(st.integers(1, COUNT - 1)), st.sampled_from([None, 1, 7]))
def test_results_of_the_fold_are_those_without_a_candidate(
    odd: list[int], cuts: list[int], every: int | None
) -> None:
    results = results_of(fold_of(odd=odd), rows_of(EVENTS, cuts), every)
    *outputs, state = [each for each in results if each.kind != "diverges"]
    *plain, end = run_fold(OLD, iter([Piece("a", EVENTS)]))
    assert state == end
    assert [each.output for each in outputs] == [each.output for each in plain]


def test_difference_is_shown_by_field_with_both_values() -> None:
    found = found_in(results_of(fold_of(odd=[IDS[8]], say=[IDS[9]]), rows_of(EVENTS)))
    assert found is not None
    assert [(each.field, each.value, each.candidate) for each in found.fields] == [
        ("more", "0", "1")
    ]
    state = {"sum": sum(e.payload[0] for e in EVENTS[:9]), "more": 0, "seen": IDS[:9]}
    assert found.digest == digest_of(state)
    assert found.candidate_digest == digest_of(state | {"more": 1})


def test_output_that_differs_names_its_order_and_both_values() -> None:
    at = next(id_ for id_ in IDS[20:] if id_ % 5 == 0)
    found = found_in(results_of(fold_of(say=[at]), rows_of(EVENTS)))
    assert found is not None
    assert (found.id, found.part) == (at, "output")
    (field,) = found.fields
    assert (field.field, int(field.candidate) - int(field.value)) == ("output[0][1]", 1)


def test_groups_are_compared_each_for_itself() -> None:
    new = fold_of(odd=[IDS[2], IDS[30]])
    rows = [*rows_of(EVENTS[:10], group="a"), *rows_of(EVENTS[10:20], group="b"),
            *rows_of(EVENTS[20:], group="c")]  # fmt: skip
    results = results_of(new, rows)
    found = [each.divergence for each in results if each.divergence is not None]
    assert [(each.group, each.id, each.rows) for each in found] == [
        ("a", IDS[2], 3),
        ("c", IDS[30], 11),
    ]
    assert [each.group for each in results if each.kind == "state"] == ["a", "b", "c"]


@pytest.mark.parametrize("every", [None, 1, 7])
def test_candidate_that_raises_is_named_with_its_order(every: int | None) -> None:
    results = results_of(fold_of(fail=IDS[41]), rows_of(EVENTS, [20, 50]), every)
    found = found_in(results)
    assert found is not None
    assert (found.id, found.equal_id, found.part) == (IDS[41], IDS[40], "error")
    assert found.error == "KeyError: 'qty'"
    assert results[-1].digest == results_of(OLD, rows_of(EVENTS), old=OLD)[-1].digest


def no_start(_: str) -> State:
    raise KeyError("x")


@pytest.mark.parametrize(
    "broken",
    [
        Fold(start=no_start, step=step),
        Fold(start=OLD.start, step=step, digest=lambda state: state["x"]),
    ],
)
def test_candidate_whose_start_or_digest_raises_is_named_at_its_first_order(
    broken: Fold[Any],
) -> None:
    found = found_in(results_of(broken, rows_of(EVENTS)))
    assert found is not None
    assert (found.id, found.part, found.error) == (IDS[0], "error", "KeyError: 'x'")


def test_candidate_whose_digest_is_no_bytes_is_named_at_its_first_order() -> None:
    def hex_text(_: State) -> Any:
        return "0a"

    candidate = Fold(start=OLD.start, step=step, digest=hex_text)
    found = found_in(results_of(candidate, rows_of(EVENTS)))
    assert found is not None
    assert (found.id, found.part) == (IDS[0], "error")
    assert "was 'str', expected bytes" in found.error


@pytest.mark.parametrize("every", [None, 1, 7])
def test_fold_that_raises_is_refused_naming_order_and_group(every: int | None) -> None:
    with pytest.raises(InputError, match=f"the fold at id {IDS[41]} of group 'a' was .*KeyError"):
        results_of(fold_of(), rows_of(EVENTS, [20]), every, old=fold_of(fail=IDS[41]))


def test_fold_that_raises_after_the_candidate_has_ended_is_refused_naming_orders() -> None:
    new, rows = fold_of(odd=[IDS[3]]), rows_of(EVENTS, [20, 40])
    named = f"the orders after {IDS[19]} up to {IDS[39]} of group 'a' was .*KeyError"
    with pytest.raises(InputError, match=named):
        results_of(new, rows, old=fold_of(fail=IDS[30]))

    def digest(state: State) -> bytes:
        if len(state["seen"]) == COUNT:
            raise KeyError("x")
        return digest_of(state)

    old = Fold(start=OLD.start, step=step, digest=digest)
    new = Fold(start=OLD.start, step=partial(step, odd=[IDS[3]]))
    with pytest.raises(InputError, match=f"digest of the state after id {IDS[-1]} of group 'a'"):
        results_of(new, rows, old=old)


@pytest.mark.parametrize(
    ("value", "other", "is_same"),
    [
        (np.arange(3), np.arange(3), True),
        (np.arange(2_000), np.arange(2_000) + (np.arange(2_000) == 999), False),
        ([1], [1.0], False),
        (1, True, False),
        ({"a": float("nan")}, {"a": float("nan")}, True),
    ],
)
def test_outputs_are_the_same_by_value_and_type(value: Any, other: Any, *, is_same: bool) -> None:
    def give(given: Any) -> Fold[int]:
        return Fold(start=lambda _: 0, step=lambda state, _: (state, [(given,)]))

    found = found_in(results_of(give(other), rows_of(EVENTS), old=give(value)))
    assert (found is None) == is_same


def test_fold_whose_result_depends_on_pieces_is_named_as_such() -> None:
    def whole(state: int, orders: Sequence[Event]) -> tuple[int, list[tuple[int]]]:
        return state + len(orders), []

    def in_pieces(state: int, orders: Sequence[Event]) -> tuple[int, list[tuple[int]]]:
        return state + len(orders) - (len(orders) > 5), []

    one, other = (Fold(start=lambda _: 0, step=whole), Fold(start=lambda _: 0, step=in_pieces))
    found = found_in(results_of(other, rows_of(EVENTS, [4, 20]), 4, old=one))
    assert found is None
    found = found_in(results_of(other, rows_of(EVENTS, [4, 20]), 8, old=one))
    assert found is not None
    assert (found.part, found.equal_id, found.id) == ("pieces", IDS[7], IDS[15])
    assert [(each.value, each.candidate) for each in found.fields] == [("16", "15")]


def counting(less: Callable[[Sequence[Event]], bool] = lambda _: False) -> Fold[int]:
    """A fold that counts orders, one less for some pieces."""
    return Fold(start=lambda _: 0, step=lambda state, rows: (state + len(rows) - less(rows), []))


def test_versions_that_differ_one_by_one_are_never_said_to_be_the_same_then() -> None:
    events = [Event(at + 1, at, "k", 0, b"\1") for at in range(1_000)]
    other = counting(lambda rows: len(rows) == 1 or any(each.id == 900 for each in rows))
    found = found_in(results_of(other, rows_of(events), 1_000, old=counting()))
    assert found is not None
    assert (found.part, found.equal_id) == ("state", 0)
    assert int(found.fields[0].value) - int(found.fields[0].candidate) == found.rows == found.id


def test_difference_that_depends_on_pieces_takes_few_digests() -> None:
    digests = 0

    def digest(state: int) -> bytes:
        nonlocal digests
        digests += 1
        return digest_of(state)

    events = [Event(at + 1, at, "k", 0, b"\1") for at in range(10_000)]
    other = replace(counting(lambda rows: len(rows) > 5), digest=digest)
    found = found_in(results_of(other, rows_of(events), 10_000, old=counting()))
    assert found is not None
    assert (found.part, found.equal_id, found.id) == ("pieces", 0, 10_000)
    assert digests < 250


def test_stored_states_are_compared_with_the_first_fold() -> None:
    states = [digest_of({"sum": 0, "more": 0, "seen": []}), b"wrong"]
    rows = [Rows("a", stored_id=0, stored=states[0]), *rows_of(EVENTS[:30]),
            Rows("a", stored_id=IDS[29], stored=states[1]), *rows_of(EVENTS[30:])]  # fmt: skip
    results = results_of(fold_of(odd=[IDS[3]]), rows)
    (differs,) = [each for each in results if each.kind == "differs"]
    assert (differs.id, differs.equal_id) == (IDS[29], 0)
    found = found_in(results)
    assert found is not None
    assert found.id == IDS[3]


class Locked:
    """A state that pickle refuses; deepcopy takes it."""

    def __init__(self, _: str) -> None:
        self.total = 0
        self.orders: dict[str, list[int]] = {}
        self.by_key = lambda key: self.orders[key]

    def __deepcopy__(self, memo: dict[int, Any]) -> "Locked":
        copy = Locked("")
        copy.total, copy.orders = self.total, {k: [*v] for k, v in self.orders.items()}
        return copy


def test_states_changed_in_place_are_copied_also_where_pickle_refuses() -> None:
    def add(state: Locked, orders: Sequence[Event], odd: int = 0) -> tuple[Locked, list[Any]]:
        for order in orders:
            state.total += order.id == odd
            state.orders.setdefault(order.key[:2], []).append(order.id)
        return state, []

    def digest(state: Locked) -> bytes:
        return digest_of([state.total, state.orders])

    one, other = (
        Fold(start=Locked, step=partial(add, odd=odd), digest=digest) for odd in (0, IDS[33])
    )
    found = found_in(results_of(other, rows_of(EVENTS, [10, 40]), 8, old=one))
    assert found is not None
    assert (found.id, found.part) == (IDS[33], "state")
    assert [(each.field, each.candidate) for each in found.fields] == [("total", "1")]


def test_state_that_cannot_be_copied_is_refused_naming_its_class() -> None:
    locks = Fold(
        start=lambda _: [threading.Lock()], step=lambda s, _: (s, []), digest=lambda _: b"same"
    )
    with pytest.raises(InputError, match="state was 'list', expected one that pickle"):
        results_of(locks, rows_of(EVENTS * 300), old=locks)


def test_states_are_copied_also_where_pickle_refuses_what_only_the_start_was_free_of() -> None:
    def count(state: Any, orders: Sequence[Event], odd: int = 0) -> tuple[Any, list[Any]]:
        state = state or defaultdict(lambda: 0)
        for order in orders:
            state[str(order.payload[0])] += 1 + (order.id == odd)
        return state, []

    events = [Event(at + 1, at, "k", 0, bytes([at % 7])) for at in range(3_000)]
    one, other = (Fold(start=lambda _: {}, step=partial(count, odd=odd)) for odd in (0, 2_500))
    found = found_in(results_of(other, rows_of(events), old=one))
    assert found is not None
    assert (found.id, found.part) == (2_500, "state")


class Packed:
    """A part of a state that pickle writes, and cannot read; deepcopy takes it."""

    def __reduce__(self) -> tuple[Any, ...]:
        return int, ("no number",)

    def __deepcopy__(self, memo: dict[int, Any]) -> "Packed":
        return Packed()


class Rejected(Exception):
    """A part of a state that neither pickle nor deepcopy can make again."""

    def __init__(self, order_id: int, reason: str) -> None:
        super().__init__(f"{order_id}: {reason}")


def holding(make: Callable[[], object], odd: int = 0) -> Fold[State]:
    """A fold whose states hold something from their first order on."""

    def hold(state: State, orders: Sequence[Event]) -> tuple[State, list[Any]]:
        total = state.get("total", 0) + len(orders) + any(each.id == odd for each in orders)
        return {"total": total, "held": make()}, []

    return Fold(start=lambda _: {}, step=hold, digest=lambda state: digest_of(state["total"]))


def test_states_are_copied_also_where_pickle_cannot_read_what_it_wrote() -> None:
    events = [Event(at + 1, at, "k", 0, b"\1") for at in range(3_000)]
    found = found_in(results_of(holding(Packed, 2_500), rows_of(events), old=holding(Packed)))
    assert found is not None
    assert (found.id, found.part) == (2_500, "state")

    def reject() -> Rejected:
        return Rejected(1, "no price")

    with pytest.raises(InputError, match="state was 'dict', expected one that pickle or deepcopy"):
        results_of(holding(reject, 2_500), rows_of(events), old=holding(reject))


@pytest.mark.parametrize("which", ["fold", "candidate"])
def test_error_that_comes_where_orders_are_applied_again_is_refused(which: str) -> None:
    seen: list[int] = []

    def once(state: State, orders: Sequence[Event]) -> tuple[State, list[Any]]:
        for order in orders:
            if order.id == IDS[3] and seen.count(order.id):
                raise KeyError("seen")
            seen.append(order.id)
        return step(state, orders, odd=[IDS[30]] if which == "candidate" else ())

    failing = Fold(start=OLD.start, step=once)
    folds = (failing, fold_of(odd=[IDS[30]])) if which == "fold" else (OLD, failing)
    expected = f"error of the {which} at id {IDS[6]} of group 'a' was .*KeyError: 'seen'"
    with pytest.raises(InputError, match=expected):
        results_of(folds[1], rows_of(EVENTS, [7]), 7, old=folds[0])


def test_small_states_are_compared_every_16_to_127_orders() -> None:
    compared: list[int] = []

    def digest(state: int) -> bytes:
        compared.append(state)
        return digest_of(state)

    fold = Fold(start=lambda _: 0, step=lambda state, orders: (state + len(orders), []))
    candidate = Fold(start=fold.start, step=fold.step, digest=digest)
    results_of(candidate, rows_of([EVENTS[0]] * 5_000), old=fold)
    distances = {after - before for before, after in itertools.pairwise([0, *compared])}
    assert (min(distances - {0}), compared[0]) == (16, 16)
    assert 100 < max(distances) <= 127


def test_large_states_are_compared_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    digests = 0

    def counted(state: bytes) -> bytes:
        nonlocal digests
        digests += 1
        return state[:1]

    large = Fold(start=lambda _: bytes(64 * 800), step=lambda state, _: (state, []), digest=counted)
    group = TwoFoldsGroup((large, large), "a")
    for at in range(3_000):
        assert not list(group.apply(Rows("a", [at + 1], ([at], [at]))))
    # More and more seldom; once 51 kB were copied, after each 400 orders.
    assert digests < 2 * 70


def test_small_pieces_between_comparisons_are_counted_as_they_come() -> None:
    asked = 0

    class Ids(list[int]):
        def __len__(self) -> int:
            nonlocal asked
            asked += 1
            return super().__len__()

        def __getitem__(self, at: Any) -> Any:
            found = super().__getitem__(at)
            return Ids(found) if isinstance(at, slice) else found

    group = TwoFoldsGroup((OLD, fold_of()), "a", 2_000)
    for at in range(1, 1_001):
        event = Event(at, at - 1, "k", 0, b"\1")
        assert all(
            each.kind == "output" for each in group.apply(Rows("a", Ids([at]), ([event], [event])))
        )
    assert asked < 20 * 1_000


def test_what_is_held_is_let_go_at_a_comparison() -> None:
    group = TwoFoldsGroup((OLD, fold_of(odd=[IDS[50]])), "a")
    assert not [each for each in group.apply(rows_of(EVENTS[:40])[0]) if each.kind != "output"]
    assert not list(group.compare())
    results = [*group.apply(rows_of(EVENTS[40:])[0]), *group.compare()]
    found = found_in(results)
    assert found is not None
    assert (found.id, found.rows) == (IDS[50], 51)


def test_candidate_is_another_fold_with_the_same_group() -> None:
    def side(order: Event) -> str:
        return order.key

    grouped = Fold(start=OLD.start, step=step, group=side)
    require_two(grouped, Fold(start=OLD.start, step=step, group=side))
    with pytest.raises(SettingError, match="candidate was 'the fold itself', expected another"):
        require_two(OLD, OLD)
    for group in (None, lambda order: order.key):
        other = Fold(start=OLD.start, step=step, group=group)
        with pytest.raises(SettingError, match=r"group of the candidate .*side: one function"):
            require_two(grouped, other)
        require_two(grouped, other, grouped=False)


@pytest.mark.parametrize("rows", [-1, 0, 2**17 + 1, 16.0])
def test_distance_of_comparisons_has_bounds(rows: Any) -> None:
    expected = f"compared_rows was {rows}, expected a number from 1 to 131072"
    with pytest.raises(SettingError, match=expected):
        require_two(OLD, fold_of(), rows)


def test_divergence_is_json_with_digests_in_hex() -> None:
    found = found_in(results_of(fold_of(odd=[IDS[8]]), rows_of(EVENTS)))
    assert found is not None
    shown = found.to_dict()
    assert (shown["digest"], shown["id"]) == (found.digest.hex(), IDS[8])
    assert [*shown["fields"]] == [{"field": "more", "value": "0", "candidate": "1"}]
