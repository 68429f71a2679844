"""The parts of the schema: which file makes which, and how the database tells that it is there.

Each part may stand in a database of its own: the outbox's in the business's, the inbox in the
consumer's. So each has its version in a table of its own, the only one that all parts have.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from orderchain.roles import (
    CALLBACK_ROLES,
    DECISION_ROLES,
    INBOX_ROLES,
    LOGIN_ROLES,
    OUTBOX_ROLES,
)
from orderchain.schema import SCHEMA_VERSION, schema_sql

if TYPE_CHECKING:
    from collections.abc import Callable


class Part(NamedTuple):
    """One part of the schema."""

    name: str
    version: int
    version_table: str
    """The table in whose only row the version stands."""
    roles: tuple[str, ...]
    """The login roles that it makes."""
    text: Callable[[], str]
    """Reads its SQL."""


def _file_of(package: str, name: str) -> Callable[[], str]:
    """Return what reads `name` in `package`, without importing the package."""

    def text() -> str:
        spec = find_spec(package)
        if spec is None or spec.origin is None:
            raise FileNotFoundError(f"{package}/{name}")
        return (Path(spec.origin).parent / name).read_text(encoding="utf-8")

    return text


PARTS: Final = {
    part.name: part
    for part in (
        Part("chain", SCHEMA_VERSION, "schema_version", LOGIN_ROLES, schema_sql),
        Part("outbox", 1, "outbox_version", OUTBOX_ROLES, _file_of("outbox", "schema.sql")),
        Part("inbox", 1, "inbox_version", INBOX_ROLES, _file_of("outbox", "inbox.sql")),
        Part("callback", 1, "callback_version", CALLBACK_ROLES, _file_of("outbox", "callback.sql")),
        Part("decision", 1, "decision_version", DECISION_ROLES, _file_of("outbox", "decision.sql")),
    )
}
"""Every part, by its name."""
