"""The parts of the schema: which file makes which, and how the database shows that it is there.

Each part may be in a database of its own: the outbox in the business's, the inbox in the
consumer's. So each has its version in a table of its own, the only one that all parts have.
"""

from __future__ import annotations

import re
from importlib.resources import files
from itertools import starmap
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from chain_kernel.errors import SchemaError
from chain_kernel.sql import (
    LOGIN_ROLES,
    OWNER,
    SCHEMA_VERSION,
    load_sql,
    renumbering,
    require_version,
    schema_sql,
)
from chainctl.database import SQL
from outbox.roles import ROLES_OF

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from chainctl.database import Connection


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


def _outbox_part(name: str, roles: tuple[str, ...]) -> SchemaPart:
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
        tables = (files("outbox") / f"sql/{name}.sql").read_text(encoding="utf-8")
        return tables.replace(_HERE, head, 1)

    return SchemaPart(name, version, table, roles, text)


PARTS: Final = {
    part.name: part
    for part in (
        SchemaPart("chain", SCHEMA_VERSION, "schema_version", LOGIN_ROLES, schema_sql),
        *starmap(_outbox_part, ROLES_OF.items()),
    )
}
"""Every part, by its name. `schema.sql` has a head of its own: DBAs apply that file as it is."""


# -- from one version to the next, while services run ----------------------------------------------
#
# A migration is a pair of files, `0003_name.before.sql` and `0003_name.after.sql`, in
# `migrations/PART` beside this module; its number is the version that it leads to. The first file
# adds what version 3 needs, and programs of version 2 still work. The second removes what only
# those needed, once none of them runs. docs/upgrade.md says how to write one.

MIGRATIONS: Final = Path(__file__).parent / "migrations"
"""Has a folder per part that has any; also the SQL of the part's base, `0002_base.sql`."""

_FILE_NAME: Final = re.compile(
    r"(?P<version>[0-9]{4})_(?P<name>[a-z0-9_]+)\.(?P<half>before|after)\.sql"
)


class Migration(NamedTuple):
    """The way from the version before to this one; both halves are SQL."""

    version: int
    name: str
    before: str
    after: str


class Version(NamedTuple):
    """The version of a database."""

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
    steps: list[UpgradeStep] = []
    for number in range(now.version + 1, target + 1):
        if (migration := migrations.get(number)) is None:
            expected = (
                f"{target}, and no migration leads to {number}: apply it to an empty database"
            )
            raise SchemaError("schema version", now.version, expected)
        title = f"{number:04}_{migration.name}"
        steps += [
            UpgradeStep(f"{title}.before", migration.before, Version(number - 1, number)),
            UpgradeStep(f"{title}.after", migration.after, Version(number, None)),
        ]
    if now.upgrade_to is not None:
        del steps[0]
    if finishes:
        return steps
    if target > now.version + 1:
        expected = f"{target - 1}: one version at a time, or --finish while no service runs"
        raise SchemaError("schema version", now.version, expected)
    return [step for step in steps if step.leads_to.upgrade_to is not None]


async def read_version(connection: Connection, part: SchemaPart) -> Version | None:
    """Return the version of `part` in the database; None where it is not there."""
    if not await connection.fetchval(SQL["has_table"], part.version_table):
        return None
    row = await connection.fetchrow(SQL[part.version_table])
    # 0 for a table without its row: no version that we know.
    return Version(0, None) if row is None else Version(row["version"], row["upgrade_to"])


async def has_part(connection: Connection, name: str) -> bool:
    """Return whether the database has the tables of a part of the schema.

    Raises SchemaError where they are of another version than ours.
    """
    part = PARTS[name]
    if not await connection.fetchval(SQL["has_table"], part.version_table):
        return False
    require_version(await connection.fetchrow(SQL[part.version_table]), part.version, part.name)
    return True


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


# -- what a part was shipped as, and how a database differs from it --------------------------------
#
# A fact is what the catalogs know of one thing of one object: a column, a grant, the body of a
# function. The shipped facts are in files beside this module, made from the part's SQL by
# `tools/schema_facts.py`: so a check needs no right to make a database.

_SQL: Final = load_sql("chainctl.schema", "facts.sql")

_TUNED: Final = "setting "
"""Storage settings are a DBA's to tune: one that was not shipped is no difference."""

_ALWAYS_THERE: Final = frozenset({"database", "schema public"})


class Fact(NamedTuple):
    """One thing of one object: `table chain_page`, `column payloads`, `bytea[] NOT NULL`."""

    object: str
    aspect: str
    value: str


def shipped_facts(part: SchemaPart) -> list[Fact]:
    """Return what `part` is where its SQL was applied and nothing was changed since."""
    text = (files("chainctl.schema") / "shipped" / f"{part.name}.json").read_bytes()
    return msgspec.json.decode(text, type=list[Fact])


def encode_facts(facts: Iterable[Fact]) -> str:
    """Return the text of a file of shipped facts: one line per fact, so that a change shows."""
    lines = ",\n".join(msgspec.json.encode(fact).decode() for fact in facts)
    return f"[\n{lines}\n]\n"


async def read_facts(connection: Connection, part: SchemaPart) -> list[Fact]:
    """Return what `part` is in the database of `connection`; any role may ask."""
    named = expected_objects(part.text(), part.roles)
    relations = [name for kind, name in named if kind in ("table", "view")]
    functions = [name for kind, name in named if kind == "function"]
    async with connection.transaction(readonly=True):
        await connection.execute(_SQL["reader_settings"])
        rows = await connection.fetch(
            _SQL["facts"], relations, functions, [OWNER, *part.roles], OWNER
        )
    return sorted(Fact(*row) for row in rows)


async def numbers_below(connection: Connection, part: SchemaPart) -> list[tuple[str, str]]:
    """Return each table whose next row would get a number that it has already, and the remedy.

    So it is after a switch to a logical replica: rows are replicated, and sequences are not. What
    this login may not read is left out.
    """
    tables = [name for kind, name in expected_objects(part.text()) if kind == "table"]
    found = []
    for table, column, question in await connection.fetch(_SQL["numbers"], tables):
        # In one statement: numbers are drawn before their rows can be seen.
        highest, stands_at = await connection.fetchrow(question)
        if highest is not None and highest > stands_at:
            what = f"table {table}: {column} goes on at {stands_at + 1}, rows go up to {highest}"
            found.append((what, renumbering(table, column)))
    return found


def schema_differences(
    found: Iterable[Fact], shipped: Iterable[Fact], own_roles: Collection[str] = ()
) -> list[str]:
    """Return one line per difference of `found` from `shipped`, sorted by object.

    What was granted to `own_roles`, which a DBA made, is no difference. PostgreSQL 15 and 18 report
    the same facts of the same schema.
    """
    ours, theirs = _by_aspect(found), _by_aspect(shipped)
    known = {name for name, _ in theirs} | _ALWAYS_THERE
    present = {name for name, _ in ours} | _ALWAYS_THERE
    lines = [f"{name}: missing" for name in known - present]
    lines += [f"{name}: not shipped" for name in present - known]
    for name, aspect in {*ours, *theirs}:
        has, was = ours.get((name, aspect)), theirs.get((name, aspect))
        if name in known & present and has != was and not _is_own(aspect, was, own_roles):
            lines.append(f"{name}: {_difference(aspect, has, was)}")
    return sorted(lines)


def is_lacking(difference: str) -> bool:
    """Return whether this line of `schema_differences` names what programs lack."""
    return bool(_LACKING.search(difference))


_LACKING: Final = re.compile(r": missing$|: column \S+ is missing, |: role \S+ may not ")


def _by_aspect(facts: Iterable[Fact]) -> dict[tuple[str, str], str]:
    return {(name, aspect): value for name, aspect, value in facts}


def _difference(aspect: str, has: str | None, shipped: str | None) -> str:
    """Return the text of one difference; None: there is no such thing."""
    role, may, privilege = aspect.partition(" may ")
    if may:
        if has is None:
            return f"{role} may not {privilege}, shipped: {shipped}"
        return (
            f"{role} {has.replace('may', f'may {privilege}', 1)}, shipped: {shipped or 'may not'}"
        )
    if aspect == "body":
        return "body is not the shipped one"
    if has is None:
        return f"{aspect} is missing, shipped as {shipped}"
    return f"{aspect} is {has}, shipped {'without' if shipped is None else f'as {shipped}'}"


def _is_own(aspect: str, shipped: str | None, own_roles: Collection[str]) -> bool:
    """Return whether the aspect is the DBA's to choose, and no part of what was shipped."""
    if shipped is not None:
        return False
    return aspect.startswith(_TUNED) or any(
        aspect.startswith((f"role {role} may ", f'role "{role}" may ')) for role in own_roles
    )
