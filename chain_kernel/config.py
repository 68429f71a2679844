"""The base of every config: a value that checks itself, however it was made, and masks secrets."""

from __future__ import annotations

from difflib import get_close_matches
from enum import Enum
from functools import cache
from types import UnionType
from typing import (
    Annotated,
    Any,
    Final,
    Literal,
    NamedTuple,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec
from msgspec import Struct, StructMeta
from msgspec.structs import force_setattr

from chain_kernel.errors import SettingError
from chain_kernel.masks import mask_dsn

_TEXT_CHARACTERS_MAX: Final = 1_000
"""Bound on a reason or an actor: a sentence for a later reader, not a document."""


def checked_text(field: str, text: str) -> str:
    """Return a reason or an actor without outer blanks.

    Raises SettingError unless it is 1 to 1,000 printable characters.
    """
    stripped = text.strip()
    if not 0 < len(stripped) <= _TEXT_CHARACTERS_MAX or not stripped.isprintable():
        expected = f"1 to {_TEXT_CHARACTERS_MAX} printable characters"
        raise SettingError(field, stripped[:50], expected)
    return stripped


def is_host(name: str) -> bool:
    """Return whether `name` can be looked up: Python raises UnicodeError for what no host has."""
    try:
        return bool(name.encode("idna"))
    except UnicodeError:
        return False


_SHOWN_CHARACTERS_MAX: Final = 200
"""For a text that was refused: an error is one line."""


class CheckedNames(StructMeta):
    """Refuses a field that is unknown or missing; it names the remedy, and no value: a secret."""

    def __call__(self, *given: Any, **fields: Any) -> Any:  # noqa: ANN401 - any struct
        """Construct. Raises SettingError."""
        known = self.__struct_fields__
        for name in sorted(fields.keys() - set(known)):
            raise SettingError(f"field of {self.__name__}", name, _instead_of(name, self))
        try:
            return super().__call__(*given, **fields)
        except TypeError as error:  # by msgspec, which names a field and no remedy
            raise _missing(self, {*known[: len(given)], *fields}) or error from None


def _missing(kind: Any, given: set[str]) -> SettingError | None:  # noqa: ANN401 - any struct's
    """Return what to say of the first field that must be given and is not."""
    for field in msgspec.structs.fields(kind):
        if field.required and field.name not in given:
            expected = " or ".join(map(_in_words, _types_of(field.type)))
            return SettingError(f"{field.name} of {kind.__name__}", None, expected)
    return None


def _instead_of(name: str, kind: Any) -> str:  # noqa: ANN401 - any struct's
    """Return what was meant: a field of a config within this one, or a name that is alike."""
    fields = msgspec.structs.fields(kind)
    for field in fields:
        for part in filter(_is_struct, _types_of(field.type)):
            if name in part.__struct_fields__:
                return f"{field.name}={part.__name__}({name}=...)"
    known = sorted(field.name for field in fields)
    if nearest := get_close_matches(name, known, n=1, cutoff=_SURE):
        return nearest[0]
    for other in Config.__subclasses__():
        if name in other.__struct_fields__:
            return f"one of {', '.join(known)}; {other.__name__} has {name}"
    nearest = get_close_matches(name, known, n=1)
    return nearest[0] if nearest else f"one of {', '.join(known)}"


_SURE: Final = 0.85
"""So much alike, it is meant rather than the same name of another config."""


class Config(Struct, metaclass=CheckedNames, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings that are checked when they are constructed, replaced or decoded.

    Each field is checked against its annotation, bounds included. Values are converted as a decoder
    converts them: an int to a float, a list to a tuple. A text that stands for a config of its own,
    as in `str | KafkaConfig`, has to be a valid one. Raises SettingError, which names the field and
    shows the value without a secret. A subclass that compares fields with each other begins its
    `__post_init__` with `super().__post_init__()`.
    """

    def __post_init__(self) -> None:
        for field in _fields_of(type(self)):
            given = getattr(self, field.name)
            checked = field.checked(given)
            if checked is not given:
                # Frozen for its users; this one has none yet.
                force_setattr(self, field.name, checked)


def expected_of(error: msgspec.ValidationError) -> str:
    """Return what msgspec expected instead of the value that it refused, in our words."""
    return str(error).partition(" - at ")[0].removeprefix("Expected ").replace("`", "")


class _Field(NamedTuple):
    """One field of a config."""

    name: str
    hint: Any
    """The annotation, with its bounds."""
    of_text: tuple[Any, ...]
    """The configs that a text may stand for, among the field's types or those of its items."""

    def checked(self, value: object) -> object:
        """Return `value` as the field holds it. Raises SettingError."""
        try:
            checked = msgspec.convert(value, self.hint)
        except msgspec.ValidationError as error:
            raise SettingError(self.name, _shown(value), self._expected(error)) from None
        for text in checked if isinstance(checked, tuple) else (checked,):
            if isinstance(text, str):
                for config in self.of_text:
                    config.of(text)
        return checked

    def _expected(self, error: msgspec.ValidationError) -> str:
        types = list(_types_of(self.hint))
        expected = expected_of(error).partition(", got ")[0]
        choices = [choice for kind in types for choice in _choices_of(kind)]
        if choices and not expected.startswith("int "):
            return f"one of {', '.join(choices)}" + (", or a number" if int in types else "")
        configs = [kind.__name__ for kind in types if _is_struct(kind)]
        if configs:
            texts = ["a text"] if str in types else []
            return " or ".join([*texts, *configs])
        return expected


@cache
def _fields_of(kind: type[Config]) -> tuple[_Field, ...]:
    found = []
    hints = get_type_hints(kind, include_extras=True)
    for name in kind.__struct_fields__:
        kinds = [each for one in _types_of(hints[name]) for each in (one, *_items_of(one))]
        of_text = tuple(one for one in kinds if _is_struct(one) and hasattr(one, "of"))
        found.append(_Field(name, hints[name], of_text))
    return tuple(found)


def _types_of(hint: Any) -> tuple[Any, ...]:  # noqa: ANN401 - whatever an annotation may be
    if get_origin(hint) is Annotated:
        return _types_of(get_args(hint)[0])
    if get_origin(hint) in (Union, UnionType):
        return tuple(kind for part in get_args(hint) for kind in _types_of(part))
    return (hint,)


def _items_of(kind: Any) -> tuple[Any, ...]:  # noqa: ANN401 - as above
    """Return the types of a tuple's items; empty if `kind` is no tuple."""
    items = get_args(kind) if get_origin(kind) is tuple else ()
    return tuple(each for item in items for each in _types_of(item))


def _is_struct(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, Struct)


def _in_words(kind: Any) -> str:  # noqa: ANN401 - as above
    kind = get_origin(kind) or kind
    return {str: "a text", int: "a number", tuple: "a list"}.get(
        kind, getattr(kind, "__name__", str(kind))
    )


def _choices_of(kind: Any) -> list[str]:  # noqa: ANN401 - as above
    """Return the values that are allowed, if there are only a few."""
    if get_origin(kind) is Literal:
        return list(map(str, get_args(kind)))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return [str(member.value) for member in kind]
    return []


def _shown(value: object) -> object:
    """Return `value` as an error may show it: no text that could hold a password."""
    if isinstance(value, str):
        if len(value) > _SHOWN_CHARACTERS_MAX:
            return f"{len(value)} characters"
        return mask_dsn(value) if any(mark in value for mark in "=@/") else value
    if value is None or isinstance(value, bool | int | float):
        return value
    return type(value).__name__
