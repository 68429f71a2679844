"""`chainctl grants`: the roles, and what each may do."""

from __future__ import annotations

import click

from chainctl.commands.schema import part_option
from chainctl.options import SuggestingGroup
from chainctl.output import data_text
from chainctl.schema.parts import PARTS, grants_sql


@click.group(cls=SuggestingGroup)
def command() -> None:
    """The roles of the engine, and what each may do."""


@command.command("print")
@part_option
def print_(part_name: str) -> None:
    """Print what makes roles and hands out privileges in the SQL of a part.

    It may be applied again, in one transaction (psql --single-transaction).
    """
    data_text(grants_sql(PARTS[part_name].text()).rstrip("\n"))
