"""`chainctl config`: what is set, and by what."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from chainctl.options import SuggestingGroup, json_option, uses_sourced_settings
from chainctl.output import data_json, table, talk
from chainctl.settings import SETTING_NAMES, shown, unknown_variables

if TYPE_CHECKING:
    from chainctl.settings import SourcedSettings


@click.group(cls=SuggestingGroup)
def command() -> None:
    """What is set, and by what."""


@command.command()
@json_option
@uses_sourced_settings(*(name for name in SETTING_NAMES if name != "log_level"))
def show(sourced: SourcedSettings, as_json: bool) -> None:
    """Show every setting, its value with passwords hidden, and where it came from."""
    rows = [
        (name, shown(name, getattr(sourced.settings, name)), sourced.sources[name])
        for name in SETTING_NAMES
    ]
    for variable in unknown_variables(os.environ):
        talk(f"chainctl: {variable} is set, but is no setting: ignored")
    if as_json:
        data_json({name: {"value": value, "source": source} for name, value, source in rows})
    else:
        table(("setting", "value", "source"), rows)
