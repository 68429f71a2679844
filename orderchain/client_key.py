"""Keys of the form `client#number`: a client's own rising numbers.

They are the cheap way to be idempotent: a number above the client's highest is new without any
look-up. A key is of this form when it ends in `#` and a number without leading zeros; every other
key is free-form, and only compared.
"""

from __future__ import annotations

from typing import Final

from orderchain.errors import OrderError
from orderchain.limits import ID_MAX

SEPARATOR: Final = "#"
_DIGITS_MAX: Final = 19
"""Digits of the largest number, 2^63 - 1; a longer tail makes the key a free-form one."""


def client_key(client: str, number: int) -> str:
    """Return the key of a client's order `number`, 0 to 2^63 - 1. Raises OrderError."""
    if not client:
        raise OrderError("client", client, "a name")
    if type(number) is not int or not 0 <= number <= ID_MAX:
        raise OrderError("number", number, f"an integer from 0 to {ID_MAX}")
    return f"{client}{SEPARATOR}{number}"


def split_client_key(key: str) -> tuple[str, int] | None:
    """Return client and number of `key`; None when it is a free-form key."""
    client, _, digits = key.rpartition(SEPARATOR)
    if not client or not digits.isdecimal() or len(digits) > _DIGITS_MAX:
        return None
    if (digits[0] == "0" and len(digits) > 1) or not digits.isascii():
        return None
    number = int(digits)
    return (client, number) if number <= ID_MAX else None
