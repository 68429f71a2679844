"""`chainctl grants`: the roles, and what each may do."""

from __future__ import annotations

import click

from chainctl.groups import SuggestingGroup
from chainctl.output import data
from chainctl.schema_sections import grants_sql
from orderchain.schema import schema_sql


@click.group(cls=SuggestingGroup)
def command() -> None:
    """The roles of the engine, and what each may do."""


@command.command("print")
def print_() -> None:
    """Print the part of schema.sql that makes roles and hands out privileges.

    It may be applied again, in one transaction (psql --single-transaction).
    """
    data(grants_sql(schema_sql()).rstrip("\n"))
