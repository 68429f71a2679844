"""`schema.sql` in parts, for DBAs who apply or check some of it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from orderchain.roles import LOGIN_ROLES, OWNER

if TYPE_CHECKING:
    from collections.abc import Sequence

_BANNER: Final = re.compile(r"^-- -{10,} (?P<title>.+)$", re.MULTILINE)
_TABLE: Final = re.compile(r"^CREATE TABLE (\w+)", re.MULTILINE)
_VIEW: Final = re.compile(r"^CREATE VIEW (\w+)", re.MULTILINE)
_FUNCTION: Final = re.compile(r"^CREATE FUNCTION (\w+)", re.MULTILINE)
DATABASE_SECTION: Final = "database"
_GRANT_SECTIONS: Final = (DATABASE_SECTION, "roles", "row security", "grants")


def sections(schema: str) -> dict[str, str]:
    """Return the parts of `schema` by the titles over them, each with the line of its title."""
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
    """Return kind and name of everything that `schema` makes, its login `roles` among it."""
    return [
        *(("role", name) for name in (OWNER, *roles)),
        *(("table", name) for name in _TABLE.findall(schema)),
        *(("view", name) for name in _VIEW.findall(schema)),
        *(("function", name) for name in _FUNCTION.findall(schema)),
    ]
