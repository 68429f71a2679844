"""The parts of the schema: which file makes which, and how the database shows that it is there.

Each part may be in a database of its own: the outbox in the business's, the inbox in the
consumer's. So each has its version in a table of its own, the only one that all parts have.
"""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from orderchain.sql import (
    CALLBACK_ROLES,
    DECISION_ROLES,
    INBOX_ROLES,
    LOGIN_ROLES,
    OUTBOX_ROLES,
    OWNER,
    SCHEMA_VERSION,
    schema_sql,
)

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


_HERE: Final = (
    "-- Here `chainctl schema print` puts chainctl/schema/head.sql: the roles, and the version.\n"
)
"""The line of a part's file that its head replaces: one head for all parts of the outbox."""


def _outbox_part(name: str, roles: tuple[str, ...], file: str) -> SchemaPart:
    """Return a part of which `outbox/sql` has the tables, and `head.sql` what comes before them."""
    table, version = f"{name}_version", 1

    def text() -> str:
        head = (Path(__file__).parent / "head.sql").read_text(encoding="utf-8")
        for variable, value in {
            ":'roles'": ", ".join(f"'{role}'" for role in roles),
            ":roles": ", ".join(roles),
            ":version_table": table,
            ":version": str(version),
        }.items():
            head = head.replace(variable, value)
        before, _, after = _read("outbox", f"sql/{file}").partition(_HERE)
        return before + head + after

    return SchemaPart(name, version, table, roles, text)


def _read(package: str, name: str) -> str:
    """Return the text of `name` in `package`, without importing the package."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise FileNotFoundError(f"{package}/{name}")
    return (Path(spec.origin).parent / name).read_text(encoding="utf-8")


PARTS: Final = {
    part.name: part
    for part in (
        SchemaPart("chain", SCHEMA_VERSION, "schema_version", LOGIN_ROLES, schema_sql),
        _outbox_part("outbox", OUTBOX_ROLES, "schema.sql"),
        _outbox_part("inbox", INBOX_ROLES, "inbox.sql"),
        _outbox_part("callback", CALLBACK_ROLES, "callback.sql"),
        _outbox_part("decision", DECISION_ROLES, "decision.sql"),
    )
}
"""Every part, by its name. `schema.sql` has a head of its own: DBAs apply that file as it is."""
