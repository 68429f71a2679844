"""`chainctl schema`: the engine's tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from chainctl.database import SQL, connected, database_id, version_refusal
from chainctl.exits import ExitCode
from chainctl.groups import SuggestingGroup
from chainctl.options import json_option, uses_settings
from chainctl.output import data, data_json, table, talk
from chainctl.running import run_async
from chainctl.schema_sections import expected_objects
from orderchain.errors import SchemaError
from orderchain.refusals import sqlstate_of
from orderchain.schema import SCHEMA_VERSION, schema_sql

if TYPE_CHECKING:
    from chainctl.database import Connection
    from chainctl.settings import Settings

_OBJECT_IN_THE_WAY: Final = frozenset({"42P07", "42723", "42710"})
"""A table, a function, an object of that name exists."""

_QUERY_OF_KIND: Final = {"role": "roles", "table": "relations", "function": "functions"}


@click.group(cls=SuggestingGroup)
def command() -> None:
    """The engine's tables, functions, roles and grants."""


@command.command("print")
def print_() -> None:
    """Print schema.sql, to be applied in one transaction."""
    data(schema_sql().rstrip("\n"))


@command.command()
@uses_settings("database", "connect_seconds")
def apply(settings: Settings) -> None:
    """Bring the schema into the database, in one transaction.

    Does nothing where it is already there in this version, and refuses another version.
    """
    if run_async(apply_schema(settings)):
        talk(f"chainctl: schema version {SCHEMA_VERSION} applied")
    else:
        talk(f"chainctl: schema version {SCHEMA_VERSION} is already there, nothing done")


@command.command()
@json_option
@uses_settings("database", "connect_seconds")
def check(settings: Settings, as_json: bool) -> ExitCode:
    """Compare the database with schema.sql: version, tables, functions, roles.

    Exit code 1 when something is missing, 2 when the schema is not there or of another version.
    """
    found = run_async(_check(settings))
    missing = [f"{kind} {name}" for kind, name, is_there in found if not is_there]
    if as_json:
        data_json({"version": SCHEMA_VERSION, "missing": missing, "objects": len(found)})
    else:
        table(("kind", "name", "there"), found)
    if missing:
        talk(f"chainctl: missing: {', '.join(missing)}")
        return ExitCode.FINDINGS
    return ExitCode.CLEAN


async def apply_schema(settings: Settings) -> bool:
    """Apply the schema; False when it is already there."""
    async with (
        connected(settings.database_dsn(), settings.connect_seconds) as connection,
        connection.transaction(),
    ):
        await connection.execute(SQL["lock_schema"])
        if await connection.fetchval(SQL["has_schema"]):
            version = await connection.fetchval(SQL["schema_version"])
            if version != SCHEMA_VERSION:
                raise version_refusal(version)
            return False
        await _execute_schema(connection)
        return True


async def _execute_schema(connection: Connection) -> None:
    try:
        await connection.execute(schema_sql())
    except Exception as error:
        if sqlstate_of(error) in _OBJECT_IN_THE_WAY:
            expected = "a schema public without objects of these names"
            raise SchemaError("database", str(error), expected) from error
        raise


async def _check(settings: Settings) -> list[tuple[str, str, bool]]:
    """Return kind and name of every object that should be there, and whether it is."""
    async with connected(settings.database_dsn(), settings.connect_seconds) as connection:
        await database_id(connection)
        there = {
            kind: {row[0] for row in await connection.fetch(SQL[query])}
            for kind, query in _QUERY_OF_KIND.items()
        }
    return [(kind, name, name in there[kind]) for kind, name in expected_objects(schema_sql())]
