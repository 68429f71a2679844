"""The tree of errors: as drawn, and each message says what was found and what was expected."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from chain_kernel import errors
from chain_kernel.errors import OrderchainError, RefusedError

CLASSES = {
    name: value
    for name, value in vars(errors).items()
    if inspect.isclass(value) and issubclass(value, Exception)
}


def drawn_parents() -> dict[str, str]:
    """Return child -> parent as the tree at the head of the module draws them."""
    parents, branch = {}, ["OrderchainError"]
    for line in (errors.__doc__ or "").splitlines():
        node = re.match(r"([│ ]*)[├└]── (\w+)", line)
        if node:
            depth = len(node[1]) // 4 + 1
            branch[depth:] = [node[2]]
            parents[node[2]] = branch[depth - 1]
    return parents


def test_tree_in_the_docstring_is_the_tree_of_the_classes() -> None:
    real = {
        name: value.__bases__[0].__name__
        for name, value in CLASSES.items()
        if value is not OrderchainError
    }
    assert drawn_parents() == real


@pytest.mark.parametrize("kind", CLASSES.values(), ids=CLASSES)
def test_error_says_in_its_docstring_what_it_means(kind: type) -> None:
    assert (kind.__doc__ or "").strip().endswith(".")


@pytest.mark.parametrize(
    "kind",
    [
        kind
        for kind in CLASSES.values()
        if issubclass(kind, RefusedError)
        and kind.__init__ in (RefusedError.__init__, errors.InputError.__init__)
    ],
)
def test_refusal_names_field_value_and_expectation(kind: type[RefusedError]) -> None:
    error = kind("batch_rows", 0, "1 to 100000")
    assert str(error) == "batch_rows was 0, expected 1 to 100000"
    assert (error.field, error.value, error.expected) == ("batch_rows", 0, "1 to 100000")


def test_refusal_of_nothing_says_that_nothing_was_given() -> None:
    error = errors.SettingError("--reason", None, "why the tables are dropped")
    assert str(error) == "--reason was not given, expected why the tables are dropped"


def test_refusal_of_a_path_shows_it_as_it_was_typed() -> None:
    error = errors.SettingError("--archive", Path("arch"), "an archive")
    assert str(error) == "--archive was 'arch', expected an archive"


def test_refusal_of_a_value_with_newlines_stays_one_line() -> None:
    error = errors.SettingError("topic", "a\nb", "letters")
    assert len(str(error).splitlines()) == 1


@pytest.mark.parametrize(("line", "start"), [(None, "price was"), (3, "line 3: price was")])
def test_input_error_names_the_line(line: int | None, start: str) -> None:
    error = errors.InputError("price", "x", "a number", line)
    assert str(error) == start + " 'x', expected a number"
    assert error.line == line


@pytest.mark.parametrize(
    ("error", "fields", "words"),
    [
        (errors.KeyConflict("k", 5), {"field": "key", "value": "k", "id": 5}, "id 5"),
        (errors.ChainMissing(9), {"value": 9}, "chainctl chain create 9"),
        (errors.NotYetReadable(4, 8), {"after_id": 4, "until_id": 8}, "after 4 up to 8"),
        (
            errors.Fenced(1, 2, 3, "you"),
            {"chain_id": 1, "epoch": 2, "current_epoch": 3, "owner": "you"},
            "another process took it over: you, in epoch 3",
        ),
        (errors.Fenced(1, 2), {"current_epoch": None}, "no longer as this process left it"),
        (
            errors.CheckpointLost(1, "r", 7, 5),
            {"chain_id": 1, "receiver": "r", "expected_id": 7, "found_id": 5},
            "was at 5, expected 7: another receiver works under this name, the database was "
            "restored from a backup, or a commit of this receiver's caller took effect late",
        ),
        (errors.UnknownOutcome(1, 2, 3, 4), {"first_id": 3, "last_id": 4}, "ids 3 to 4"),
        (errors.RowsMissing(1, 2, 3), {"after_id": 2, "until_id": 3}, "after 2 up to 3"),
        (errors.RowsArchived(1, 2, 3), {"after_id": 2, "until_id": 3}, "were archived"),
        (
            errors.ForkFound(1, 5, 6, 7),
            {"pid": 5, "delivered_id": 6, "found_id": 7},
            "after 5: delivered 6, the database has 7",
        ),
        (errors.ForkFound(1, 5, 6, None), {"found_id": None}, "no such row"),
        (
            errors.SealMismatch(1, 9, b"\x01" * 32, b"\x02" * 32),
            {"last_id": 9, "expected": b"\x01" * 32, "found": b"\x02" * 32},
            "was 0202020202020202..., expected 0101010101010101...",
        ),
        (
            errors.PageDamaged(1, 5, 8, "keys [1:3]; expected [1:4]"),
            {"first_id": 5, "last_id": 8, "lacks": "keys [1:3]; expected [1:4]"},
            "chain 1: the stored page of ids 5 to 8 lacks values: keys [1:3]; expected [1:4]",
        ),
        (
            errors.BatchDamaged(1, 5, 8, b"\1" * 32, b"\2" * 32),
            {"first_id": 5, "last_id": 8, "expected": b"\1" * 32, "found": b"\2" * 32},
            "chain 1: the batch of ids 5 to 8 was changed: its rows give the seal "
            "0202020202020202..., stored is 0101010101010101...",
        ),
        (errors.ForeignDatabase(1, "a", "b"), {"expected": "a"}, "was b, expected a"),
        (
            errors.PrimaryBehind(1, 5, 8),
            {"head_persisted": 5, "head_delivered": 8},
            "ends at 5, but 8",
        ),
        (errors.FrameError("crc", "no match"), {"reason": "crc"}, "crc: no match"),
    ],
)
def test_error_carries_what_its_catcher_needs(
    error: OrderchainError, fields: dict[str, object], words: str
) -> None:
    assert words in str(error)
    for name, value in fields.items():
        assert getattr(error, name) == value


@pytest.mark.parametrize(
    ("kind", "parent"),
    [
        ("KeyConflict", "RefusedError"),
        ("NotYetReadable", "RetryError"),
        ("Fenced", "StoppedError"),
        ("RowsArchived", "GapError"),
        ("ForkFound", "HaltError"),
    ],
)
def test_error_is_caught_by_what_its_catcher_does_next(kind: str, parent: str) -> None:
    assert issubclass(CLASSES[kind], CLASSES[parent])


def test_frame_error_is_neither_a_halt_nor_a_stop() -> None:
    assert errors.FrameError.__bases__ == (OrderchainError,)
