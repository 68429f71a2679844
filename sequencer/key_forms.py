"""Tells keys of the form `client#number` from free-form ones, for a whole batch at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from orderchain.client_key import SEPARATOR, split_client_key
from orderchain.limits import ID_MAX

_NUL: Final = "\0"
"""Stands in no key."""


class KeyForms(Struct, frozen=True, gc=False):
    """The keys of a batch by their form; an index is a key's place among all."""

    free: Sequence[int]
    """Indexes of the free-form keys."""
    rising: Sequence[int]
    """Indexes of the others, whose clients and numbers follow in the same order."""
    clients: Sequence[str]
    numbers: Sequence[int]


def forms_of(keys: Sequence[str]) -> KeyForms:
    """Return the forms of `keys`, of which none contains NUL.

    Where all are of one form, which is common, they are taken apart together: at a third of the
    cost of one by one.
    """
    text = _NUL.join(keys)
    separators = text.count(SEPARATOR)
    if separators == 0:
        return KeyForms(range(len(keys)), (), (), ())
    if separators == len(keys) and all([SEPARATOR in key for key in keys]):
        # One in each: clients and numbers stand by turns.
        parts = text.replace(SEPARATOR, _NUL).split(_NUL)
        clients, texts = parts[0::2], parts[1::2]
        numbers = _numbers_of(texts, may_have_zeros=f"{SEPARATOR}0" in text)
        if numbers is not None and all(clients):
            return KeyForms((), range(len(keys)), clients, numbers)
    return _forms_one_by_one(keys)


def _numbers_of(texts: list[str], *, may_have_zeros: bool) -> list[int] | None:
    """Return the numbers in `texts`; None where one may be no number of a client."""
    digits = "".join(texts)
    if not (digits.isdecimal() and digits.isascii() and all(texts)):
        return None
    if may_have_zeros and any(text[0] == "0" and len(text) > 1 for text in texts):
        return None
    numbers = list(map(int, texts))
    return numbers if max(numbers) <= ID_MAX else None


def _forms_one_by_one(keys: Sequence[str]) -> KeyForms:
    free: list[int] = []
    rising: list[int] = []
    clients: list[str] = []
    numbers: list[int] = []
    for index, key in enumerate(keys):
        split = split_client_key(key)
        if split is None:
            free.append(index)
            continue
        rising.append(index)
        clients.append(split[0])
        numbers.append(split[1])
    return KeyForms(free, rising, clients, numbers)
