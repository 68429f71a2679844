"""The tree of errors: as drawn, and each message says what was found and what was expected."""

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
