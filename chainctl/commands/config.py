"""`chainctl config`: settings and their sources."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from chainctl.options import Group, json_option, sourced_settings, uses_settings
from chainctl.output import data_json, table, talk
from chainctl.settings import SETTING_NAMES, shown, unknown_variables

if TYPE_CHECKING:
    from chainctl.settings import Settings


@click.group(cls=Group)
def config() -> None:
    """Settings and their sources."""


@config.command()
@json_option
@uses_settings(*(name for name in SETTING_NAMES if not name.startswith("log_")))
def show(settings: Settings, as_json: bool) -> None:
    """Show every setting, its value with passwords hidden, and where it came from.

    Exit code 2 for one that a start would refuse.
    """
    from chainctl.commands.chain.sequence import judge

    sources = sourced_settings().sources
    rows = [(name, shown(name, getattr(settings, name)), sources[name]) for name in SETTING_NAMES]
    for variable in unknown_variables(os.environ):
        talk(f"chainctl: {variable} is set, but is no setting: ignored")
    if as_json:
        data_json({name: {"value": value, "source": source} for name, value, source in rows})
    else:
        # Not as in other tables: a span of 4 ms is 0.004, not 0.0.
        cells = [
            (name, f"{value:.12g}" if isinstance(value, float) else value, source)
            for name, value, source in rows
        ]
        table(("setting", "value", "source"), cells)
    judge(settings)
