"""The fields in which two states differ, each with both values. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from chain_kernel.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_VALUE_CHARACTERS_MAX: Final = 200
_DEPTH_MAX: Final = 30
_SCALARS: Final = (str, int, bytes, float, type(None))


class FieldDifference(Struct, frozen=True):
    """A field that two states do not share, and its two values, as text."""

    field: str
    """Its place in the state, such as `orders.17[2]`; empty for the state itself."""
    value: str
    candidate: str


class _Nothing:
    def __repr__(self) -> str:
        return "nothing"


_NOTHING: Final = _Nothing()


def field_differences(one: object, other: object) -> Iterator[FieldDifference]:
    """Yield the fields that differ: of dicts, lists, Structs, dataclasses and other objects.

    What two lists begin and end with alike is left out, so an element more is one difference. Parts
    that a state has at several places are compared once.
    """
    return _within(one, other, "", 0, {})


def is_alike(one: Any, other: Any) -> bool:  # noqa: ANN401 - values of a fold
    """Return whether two values are the same, and of one type, with all that lists, tuples, dicts
    and arrays hold; NaN is the same as NaN.
    """
    if type(one) is not type(other):
        return False
    if isinstance(one, _SCALARS):
        return bool(one == other) or repr(one) == repr(other)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(is_alike, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(is_alike(one[key], other[key]) for key in one)
    if hasattr(one, "tolist"):
        is_one_type = getattr(one, "dtype", None) == getattr(other, "dtype", None)
        return is_one_type and is_alike(one.tolist(), other.tolist())
    with suppress(Exception):  # whatever comparing two values raises
        if one == other:
            return True
    return repr(one) == repr(other)


def _within(
    one: Any,  # noqa: ANN401
    other: Any,  # noqa: ANN401
    field: str,
    depth: int,
    # By their ids; held, so that no other value has the same meanwhile.
    seen: dict[tuple[int, int], object],
) -> Iterator[FieldDifference]:
    one, other = (each.tolist() if hasattr(each, "tolist") else each for each in (one, other))
    parts = _parts_of(one, other) if depth < _DEPTH_MAX else None
    if parts is None:
        if not is_alike(one, other):
            yield FieldDifference(field, _shown(one), _shown(other))
    elif (id(one), id(other)) not in seen:
        seen[id(one), id(other)] = one, other
        for name, value, candidate in parts:
            place = f"{field}{name}" if field else name.removeprefix(".")
            yield from _within(value, candidate, place, depth + 1, seen)


def _parts_of(one: object, other: object) -> Iterator[tuple[str, object, object]] | None:
    """Yield the parts of two values in pairs, by name or index; None for values without parts."""
    names, others = _names_of(one), _names_of(other)
    if names is not None and others is not None:
        return (
            (f".{name}", names.get(name, _NOTHING), others.get(name, _NOTHING))
            for name in {**names, **others}
        )
    if not (isinstance(one, list | tuple) and isinstance(other, list | tuple)):
        return None
    first, (end, other_end) = _unlike(one, other)
    return (
        (f"[{at}]", one[at] if at < end else _NOTHING, other[at] if at < other_end else _NOTHING)
        for at in range(first, max(end, other_end))
    )


def _unlike(one: Sequence[Any], other: Sequence[Any]) -> tuple[int, tuple[int, int]]:
    """Return where two lists begin to differ, and for each where that ends."""
    first, ends = 0, (len(one), len(other))
    while first < min(ends) and is_alike(one[first], other[first]):
        first += 1
    while first < min(ends) and is_alike(one[ends[0] - 1], other[ends[1] - 1]):
        ends = ends[0] - 1, ends[1] - 1
    return first, ends


def _names_of(value: object) -> Mapping[Any, Any] | None:
    """Return the named parts of a value; None where it has none."""
    if isinstance(value, Mapping):
        return value
    if isinstance(value, type | list) or callable(value):
        return None
    names = getattr(type(value), "__struct_fields__", None) or getattr(value, "_fields", None)
    if names is None:
        slots = (vars(each).get("__slots__", ()) for each in type(value).__mro__)
        flat = (name for each in slots for name in ([each] if isinstance(each, str) else each))
        names = [*flat, *getattr(value, "__dict__", ())]
    found = {name: getattr(value, name) for name in names if hasattr(value, name)}
    # Functions that a state carries are no part of what it says.
    return {name: each for name, each in found.items() if not callable(each)} or None


def _shown(value: object) -> str:
    if isinstance(value, bytes):
        return value.hex()
    return printable(value if isinstance(value, str) else repr(value), _VALUE_CHARACTERS_MAX)
