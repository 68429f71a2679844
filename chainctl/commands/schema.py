"""`chainctl schema` and `grants`: the tables of the engine, its roles, and what each may do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from chain_kernel.errors import SchemaError, SettingError
from chain_kernel.sql import OWNER, require_version
from chain_kernel.text import counted
from chainctl.admin import apply_schema
from chainctl.database import SQL, connected_to
from chainctl.event_loop import run_async
from chainctl.exits import ExitCode
from chainctl.options import Group, json_option, uses_settings
from chainctl.output import data, data_json, data_text, talk
from chainctl.schema.parts import (
    DATABASE_SECTION,
    PARTS,
    apply_steps,
    grants_sql,
    migrations_of,
    numbers_below,
    read_facts,
    read_version,
    schema_differences,
    sections,
    shipped_facts,
    steps_to,
)
from chainctl.units import Integer

if TYPE_CHECKING:
    from chainctl.database import Connection
    from chainctl.schema.parts import SchemaPart, UpgradeStep, Version
    from chainctl.settings import Settings


_APPLIER: Final = f"{OWNER}, or has CREATEROLE, and owns the database"
"""The login that may apply the schema; see `docs/permissions.md`."""

STEP_SECONDS: Final = 60.0
"""Deadline of one statement of an upgrade: it may rewrite a table."""

part_option: Final = click.option(
    "--part",
    "part_name",
    type=click.Choice(list(PARTS)),
    default="chain",
    show_default=True,
    help="Which tables: each part may be in a database of its own.",
)


@click.group(cls=Group)
def schema() -> None:
    """The engine's tables, functions, roles and grants."""


@schema.command("print")
@part_option
def print_(part_name: str) -> None:
    """Print the SQL of a part, to be applied in one transaction."""
    data_text(PARTS[part_name].text().rstrip("\n"))


@schema.command()
@part_option
@uses_settings("database", "connect_seconds")
def apply(settings: Settings, part_name: str) -> None:
    """Bring the schema into the database, in one transaction.

    Does nothing where it is already there in this version, and refuses another version. Says what
    is left to a superuser or to the database's owner.
    """
    part = PARTS[part_name]
    applied, left = run_async(_apply(settings, part))
    if applied:
        talk(f"chainctl: {_label(part)} applied")
    else:
        talk(f"chainctl: {_label(part)} is already there, nothing done")
    for step in left:
        talk(f"chainctl: left to the DBA: {step};")


@schema.command()
@part_option
@click.option(
    "--own-role",
    "own_roles",
    multiple=True,
    metavar="ROLE",
    help="A role of yours: what you granted to it is no difference. Repeatable.",
)
@json_option
@uses_settings("database", "connect_seconds")
def check(
    settings: Settings, as_json: bool, part_name: str, own_roles: tuple[str, ...]
) -> ExitCode:
    """Compare the database with the part as it was shipped: version, objects, columns,
    constraints, indexes, functions, triggers, policies, owners, grants, and the steps that `apply`
    leaves to a DBA. Prints one line per thing that is missing or different.

    Exit code 1 when something is missing or different, 2 when the schema is not there or of
    another version.
    """
    part = PARTS[part_name]
    found = run_async(_check(settings, part, own_roles))
    if as_json:
        data_json({"version": part.version, "differences": found})
    else:
        for line in found:
            data(line)
    if not found:
        talk(f"chainctl: {_label(part)}: as shipped")
        return ExitCode.CLEAN
    talk(f"chainctl: {counted(len(found), 'difference')} from what was shipped")
    return ExitCode.FINDINGS


@schema.command()
@part_option
@click.option(
    "--target", "target", type=Integer(), metavar="N", help="Version. Default: this program's."
)
@click.option(
    "--finish",
    "finishes",
    is_flag=True,
    help="Apply the second half too. Only when every service runs the new release, or none runs.",
)
@click.option("--dry-run", is_flag=True, help="Print the SQL, and change nothing.")
@uses_settings("database", "connect_seconds")
def upgrade(
    settings: Settings, part_name: str, target: int | None, finishes: bool, dry_run: bool
) -> None:
    """Take the tables of a part to a newer version, in two halves (docs/upgrade.md).

    The first half leaves a database in which services of both releases work: restart them one
    after the other, then run this command with --finish. Each half is one transaction. Does
    nothing where nothing is due; refuses a database that is newer.
    """
    part = PARTS[part_name]
    version = part.version if target is None else target
    steps = run_async(_upgrade(settings, part, version, finishes, dry_run))
    for step in steps:
        if dry_run:
            data_text(f"-- {step.title}\n{step.sql.rstrip()}")
        else:
            talk(f"chainctl: {step.title} applied")
    if not steps:
        talk("chainctl: nothing to do")
    elif not dry_run and steps[-1].leads_to.upgrade_to is not None:
        talk("chainctl: restart the services with the new release, then add --finish")


async def _upgrade(
    settings: Settings, part: SchemaPart, target: int, finishes: bool, dry_run: bool
) -> list[UpgradeStep]:
    """Apply what leads to `target`, unless it is a `dry_run`; return it."""
    if target > part.version:
        raise SettingError("--target", target, f"at most {part.version}: use a newer orderchain")
    async with connected_to(
        settings.database_dsn(), settings.connect_seconds, _APPLIER, STEP_SECONDS
    ) as connection:
        version = await _require_there(connection, part)
        steps = steps_to(target, version, migrations_of(part), finishes=finishes)
        if not dry_run:
            await apply_steps(connection, part, steps, version)
    return steps


async def _require_there(connection: Connection, part: SchemaPart) -> Version:
    """Return the version of the part. Raises SchemaError where it is not there."""
    if (version := await read_version(connection, part)) is None:
        option = "" if part.name == "chain" else f" --part {part.name}"
        expected = f"the tables of part {part.name} (chainctl schema apply{option})"
        raise SchemaError("schema", "none", expected)
    return version


async def _check(settings: Settings, part: SchemaPart, own_roles: tuple[str, ...]) -> list[str]:
    """Return how the database differs from `part`. Raises SchemaError for another version."""
    async with connected_to(settings.database_dsn(), settings.connect_seconds, OWNER) as connection:
        version = await _require_there(connection, part)
        require_version(version._asdict(), part.version, part.name)
        if version.upgrade_to is not None:  # it was shipped as neither
            return [f"{_label(part)}: an upgrade to {version.upgrade_to} is under way"]
        found = schema_differences(
            await read_facts(connection, part), shipped_facts(part), own_roles
        )
        found += map(": ".join, await numbers_below(connection, part))
        steps = await _steps(connection, part)
    return found + [f"step {step}: missing" for step, is_done in steps if not is_done]


async def _apply(settings: Settings, part: SchemaPart) -> tuple[bool, list[str]]:
    """Apply the part; return whether it was not there, and what only a DBA may run after it."""
    async with connected_to(
        settings.database_dsn(), settings.connect_seconds, _APPLIER
    ) as connection:
        applied = await apply_schema(connection, (part.name,))
        steps = await _steps(connection, part)
    return bool(applied), [step for step, is_done in steps if not is_done]


async def _steps(connection: Connection, part: SchemaPart) -> list[tuple[str, bool]]:
    """Return what the database section of the part closes to everybody, and whether it is done."""
    if DATABASE_SECTION not in sections(part.text()):
        return []
    return [tuple(row) for row in await connection.fetch(SQL["steps"])]


def _label(part: SchemaPart) -> str:
    named = "schema" if part.name == "chain" else f"schema of {part.name},"
    return f"{named} version {part.version}"


# -- grants ---------------------------------------------------------------------------------------


@click.group(cls=Group)
def grants() -> None:
    """The roles of the engine, and what each may do."""


@grants.command("print")
@part_option
def print_grants(part_name: str) -> None:
    """Print what makes roles and hands out privileges in the SQL of a part.

    It may be applied again, in one transaction (psql --single-transaction).
    """
    data_text(grants_sql(PARTS[part_name].text()).rstrip("\n"))
