"""The parts of the schema: which file makes which, and how the database shows that it is there.

Each part may be in a database of its own: the outbox in the business's, the inbox in the
consumer's. So each has its version in a table of its own, the only one that all parts have.
"""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from orderchain.roles import (
    CALLBACK_ROLES,
    DECISION_ROLES,
    INBOX_ROLES,
    LOGIN_ROLES,
    OUTBOX_ROLES,
    OWNER,
)
from orderchain.sql import SCHEMA_VERSION, schema_sql

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


_BANNER: Final = re.compile(r"^-- -{10,} (?P<title>.+)$", re.MULTILINE)
_TABLE: Final = re.compile(r"^CREATE TABLE (\w+)", re.MULTILINE)
_VIEW: Final = re.compile(r"^CREATE VIEW (\w+)", re.MULTILINE)
_FUNCTION: Final = re.compile(r"^CREATE FUNCTION (\w+)", re.MULTILINE)
DATABASE_SECTION: Final = "database"
_GRANT_SECTIONS: Final = (DATABASE_SECTION, "roles", "row security", "grants")


def sections(schema: str) -> dict[str, str]:
    """Return the parts of `schema` by the titles above them, each with the line of its title."""
    banners = list(_BANNER.finditer(schema))
    ends = [banner.start() for banner in banners[1:]] + [len(schema)]
    return {
        banner["title"].strip(): schema[banner.start() : end].strip() + "\n"
        for banner, end in zip(banners, ends, strict=True)
    }


def grants_sql(schema: str) -> str:
    """Return the part of `schema` that makes roles and says what each may do.

    It may be applied again to tables that are there, in one transaction.
    """
    parts = sections(schema)
    return "\n".join(parts[title] for title in _GRANT_SECTIONS if title in parts)


def expected_objects(schema: str, roles: Sequence[str] = LOGIN_ROLES) -> list[tuple[str, str]]:
    """Return kind and name of everything that `schema` makes, its login `roles` included."""
    return [
        *(("role", name) for name in (OWNER, *roles)),
        *(("table", name) for name in _TABLE.findall(schema)),
        *(("view", name) for name in _VIEW.findall(schema)),
        *(("function", name) for name in _FUNCTION.findall(schema)),
    ]


class SchemaPart(NamedTuple):
    """One part of the schema."""

    name: str
    version: int
    version_table: str
    """The table whose only row holds the version."""
    roles: tuple[str, ...]
    """The login roles that it makes."""
    text: Callable[[], str]
    """Reads its SQL."""


def _file_of(package: str, name: str) -> Callable[[], str]:
    """Return a function that reads `name` in `package`, without importing the package."""

    def text() -> str:
        spec = find_spec(package)
        if spec is None or spec.origin is None:
            raise FileNotFoundError(f"{package}/{name}")
        return (Path(spec.origin).parent / name).read_text(encoding="utf-8")

    return text


PARTS: Final = {
    part.name: part
    for part in (
        SchemaPart("chain", SCHEMA_VERSION, "schema_version", LOGIN_ROLES, schema_sql),
        SchemaPart(
            "outbox", 1, "outbox_version", OUTBOX_ROLES, _file_of("outbox", "sql/schema.sql")
        ),
        SchemaPart("inbox", 1, "inbox_version", INBOX_ROLES, _file_of("outbox", "sql/inbox.sql")),
        SchemaPart(
            "callback",
            1,
            "callback_version",
            CALLBACK_ROLES,
            _file_of("outbox", "sql/callback.sql"),
        ),
        SchemaPart(
            "decision",
            1,
            "decision_version",
            DECISION_ROLES,
            _file_of("outbox", "sql/decision.sql"),
        ),
    )
}
"""Every part, by its name."""
