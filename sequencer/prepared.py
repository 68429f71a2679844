"""Statements that go to the server in one message with a COPY: a whole transaction in one trip.

The simple-query protocol takes several statements in one message, ends the transaction with the
last of them, and lets one of them be a COPY from the client. It carries no parameters, so the
statements are prepared once a session and called with literals; those are written here, and are
numbers and hexadecimal digits whatever the values are.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Final

from orderchain.sql import load_sql

if TYPE_CHECKING:
    from collections.abc import Iterable

    from orderchain.clients.postgres import Connection

_SQL: Final = load_sql("sequencer", "queries.sql")
_NAMES: Final = ("commit_batch", "save_mark", "save_reject")


async def prepare(connection: Connection) -> None:
    """Prepare, for the session of `connection`, what `call` may name; once a session."""
    await connection.execute(
        ";".join(f"PREPARE orderchain_{name} AS {_SQL[name]}" for name in _NAMES)
    )


def call(name: str, values: Iterable[object]) -> str:
    """Return the statement that executes the prepared `name` with `values`."""
    return f"EXECUTE orderchain_{name}({','.join(map(literal, values))})"


def literal(value: object) -> str:
    """Return `value` as SQL. Text travels as the hexadecimal digits of its UTF-8: nothing in it can
    end the literal. Raises TypeError for a type that no statement here takes.
    """
    if value is None:
        return "NULL"
    if type(value) is int:
        return str(value)
    if isinstance(value, bytes):
        return f"'\\x{value.hex()}'::bytea"
    if isinstance(value, str):
        return f"convert_from('\\x{value.encode().hex()}'::bytea, 'UTF8')"
    if isinstance(value, datetime):
        return f"'{value.isoformat()}'::timestamptz"
    raise TypeError(f"no literal for {type(value).__name__}")
