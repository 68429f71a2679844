"""Takes a part of the schema from one version to the next, while services run.

A migration is a pair of files, `0003_name.before.sql` and `0003_name.after.sql`, in
`migrations/PART` beside this module; its number is the version that it leads to. The first file
adds what version 3 needs, and programs of version 2 still work. The second removes what only those
needed, once none of them runs. docs/upgrade.md says how to write one.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from chainctl.database import SQL
from orderchain.errors import SchemaError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from chainctl.database import Connection
    from chainctl.schema.parts import SchemaPart

MIGRATIONS: Final = Path(__file__).parent / "migrations"
"""Has a folder per part that has any; also the SQL of the part's base, `0002_base.sql`."""

_FILE_NAME: Final = re.compile(
    r"(?P<version>\d{4})_(?P<name>[a-z0-9_]+)\.(?P<half>before|after)\.sql"
)


class Migration(NamedTuple):
    """The way from the version before to this one; both halves are SQL."""

    version: int
    name: str
    before: str
    after: str


class Version(NamedTuple):
    """Which version a database is of."""

    version: int
    upgrade_to: int | None
    """The version whose first half is applied, too; None while no upgrade is under way."""


class UpgradeStep(NamedTuple):
    """One half of a migration, and the version of the database after it."""

    title: str
    sql: str
    leads_to: Version


def migrations_of(part: SchemaPart, folder: Path = MIGRATIONS) -> dict[int, Migration]:
    """Return the migrations of `part` by their versions.

    Raises ValueError for a file with another name, a half without the other, or two of one version.
    """
    halves: dict[tuple[int, str], dict[str, str]] = {}
    for path in sorted((folder / part.name).glob("*.sql")):
        if path.name.endswith("_base.sql"):
            continue
        match = _FILE_NAME.fullmatch(path.name)
        if match is None:
            raise ValueError(f"{path.name}, expected a name such as 0003_name.before.sql")
        found = halves.setdefault((int(match["version"]), match["name"]), {})
        found[match["half"]] = path.read_text(encoding="utf-8")
    if lonely := [name for (_, name), found in halves.items() if len(found) < 2]:
        raise ValueError(f"migration {lonely[0]} has one half, expected before and after")
    migrations = {number: Migration(number, name, **sql) for (number, name), sql in halves.items()}
    if len(migrations) < len(halves):
        raise ValueError("two migrations lead to one version")
    return migrations


def steps_to(
    target: int, now: Version, migrations: Mapping[int, Migration], *, finishes: bool
) -> list[UpgradeStep]:
    """Return what leads from `now` to `target`; nothing if the database is there.

    Without `finishes` that is the first half of one migration at most, after which programs of
    both versions work; with it the second half, and whole migrations. Raises SchemaError where no
    migration leads there, and for more than one version without `finishes`.
    """
    if (newest := now.upgrade_to or now.version) > target:
        raise SchemaError("schema version", newest, f"at most {target}; use a newer orderchain")
    steps = []
    for number in range(now.version + 1, target + 1):
        if (migration := migrations.get(number)) is None:
            expected = (
                f"{target}, and no migration leads to {number}: apply it to an empty database"
            )
            raise SchemaError("schema version", now.version, expected)
        steps += _halves(migration)
    if now.upgrade_to is not None:
        del steps[0]
    if finishes:
        return steps
    if target > now.version + 1:
        expected = f"{target - 1}: one version at a time, or --finish while no service runs"
        raise SchemaError("schema version", now.version, expected)
    return [step for step in steps if step.leads_to.upgrade_to is not None]


def _halves(migration: Migration) -> list[UpgradeStep]:
    number, title = migration.version, f"{migration.version:04}_{migration.name}"
    return [
        UpgradeStep(f"{title}.before", migration.before, Version(number - 1, number)),
        UpgradeStep(f"{title}.after", migration.after, Version(number, None)),
    ]


async def read_version(connection: Connection, part: SchemaPart) -> Version | None:
    """Return the version of `part` in the database; None where it is not there."""
    if not await connection.fetchval(SQL["has_table"], part.version_table):
        return None
    row = await connection.fetchrow(SQL[part.version_table])
    # 0 for a table without its row: no version that we know.
    return Version(0, None) if row is None else Version(row["version"], row["upgrade_to"])


async def apply_steps(
    connection: Connection, part: SchemaPart, steps: Iterable[UpgradeStep], before: Version
) -> None:
    """Apply `steps` to a database of version `before`, each in a transaction of its own.

    Raises SchemaError if another process changes the version meanwhile, and what the server raises;
    steps that were applied before stay.
    """
    for step in steps:
        async with connection.transaction():
            await connection.execute(SQL["lock_schema"])
            now = await read_version(connection, part)
            if now != before:
                raise SchemaError("schema version", now and now.version, f"still {before.version}")
            await connection.execute(SQL["for_migration"])
            await connection.execute(step.sql)
            await connection.execute(SQL[f"set_{part.version_table}"], *step.leads_to)
        before = step.leads_to
