"""`chainctl stack`: real servers on this machine, and `--demo`, the settings of the last demo."""

from __future__ import annotations

import os
import shlex
import sys
from typing import TYPE_CHECKING, Final

import click

from chain_kernel.errors import SettingError
from chainctl.exits import ExitCode
from chainctl.options import Group, json_option, uses_settings
from chainctl.output import data_json, data_text, table, talk
from chainctl.settings import CONFIG_PATH, DEMO, ENVIRONMENT_PREFIX, load_settings

if TYPE_CHECKING:
    from chainctl.settings import Settings
    from local_stack import LocalStack, StackStatus

_KAFKA: Final = f"{ENVIRONMENT_PREFIX}KAFKA"


@click.group(cls=Group)
def stack() -> None:
    """A real PostgreSQL and a real Kafka on this machine, reached on loopback only."""


@stack.command()
@click.option("--no-kafka", is_flag=True, help="Start PostgreSQL alone.")
@json_option
@uses_settings("stack_dir")
def up(settings: Settings, no_kafka: bool, as_json: bool) -> None:
    """Start what is not running; the first start fetches Kafka."""
    _show(stack_of(settings).up(talk, with_kafka=not no_kafka), as_json=as_json)


@stack.command()
@uses_settings("stack_dir")
def down(settings: Settings) -> None:
    """Stop the servers, keeping their data."""
    stack_of(settings).down(talk)


@stack.command()
@click.option("--yes", "is_sure", is_flag=True, help="Do not ask: for scripts.")
@uses_settings("stack_dir")
def reset(settings: Settings, is_sure: bool) -> ExitCode:
    """Stop the servers and delete their data, ports and passwords.

    It asks first. Exit code 2 if the answer is no, and without a terminal unless --yes is given.
    """
    local = stack_of(settings)
    folder = local.directory
    if folder.is_dir() and not is_sure:
        if sys.stdin is None or not sys.stdin.isatty():
            raise click.UsageError(f"no terminal to ask whether {folder} may be deleted: --yes.")
        if not click.confirm(f"Delete all databases and topics in {folder}?", err=True):
            talk("chainctl: nothing was deleted")
            return ExitCode.REFUSED
    local.reset(talk)
    return ExitCode.CLEAN


@stack.command()
@json_option
@uses_settings("stack_dir")
def status(settings: Settings, as_json: bool) -> ExitCode:
    """Show how the servers do. Exit code 1 unless all answer."""
    found = stack_of(settings).status()
    _show(found, as_json=as_json)
    if not found.servers:
        talk(f"chainctl: there is no stack in {found.directory} yet (chainctl stack up)")
    return ExitCode.CLEAN if found.up else ExitCode.FINDINGS


@stack.command(short_help="Print the settings that reach the stack.")
@json_option
@uses_settings("stack_dir")
def env(settings: Settings, as_json: bool) -> None:
    """Print the settings that reach the stack: eval "$(chainctl stack env)"."""
    variables = stack_of(settings).environment()
    if as_json:
        data_json(variables)
        return
    for name, value in variables.items():
        quoted = shlex.quote(value)
        if not quoted.startswith("'"):  # it needs none, and gets them all the same
            quoted = f"'{quoted}'"
        data_text(f"export {name}={quoted}")
    if _KAFKA not in variables:  # the one of another stack would be taken for this one's
        data_text(f"unset {_KAFKA}")


def stack_of(settings: Settings) -> LocalStack:
    """Return the local stack that the settings name."""
    from local_stack import LocalStack, default_directory
    from local_stack.folders import DIRECTORY_VARIABLE

    named = {DIRECTORY_VARIABLE: settings.stack_dir} if settings.stack_dir else {}
    return LocalStack(default_directory({**os.environ, **named}), is_long_run=False)


def _show(status: StackStatus, *, as_json: bool) -> None:
    rows = [
        (server.name, server.port, server.running, server.answering, str(server.log_path))
        for server in status.servers
    ]
    names = ("name", "port", "running", "answering", "log")
    if as_json:
        servers = [dict(zip(names, row, strict=True)) for row in rows]
        data_json({"directory": str(status.directory), "up": status.up, "servers": servers})
    else:
        table(names, rows)


# -- the last demo --------------------------------------------------------------------------------


def _take_last_demo(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    """Make servers, chain and files of the last demo the defaults. Raises SettingError."""
    if not wanted or context.resilient_parsing:
        return
    from local_stack.last_demo import last_demo

    config = context.meta.get(CONFIG_PATH)
    stack = stack_of(load_settings(["--config", config] if config else []).settings)
    left = last_demo(stack)
    if left is None:
        raise SettingError("--demo", str(stack.directory), "the folder of a stack with a demo")
    servers = {
        name.removeprefix(ENVIRONMENT_PREFIX).lower(): value
        for name, value in stack.environment().items()
    }
    context.meta[DEMO] = servers | {"gap_database": (servers["gap_database"],)}
    context.default_map = dict(context.default_map or {}) | {
        "chain_id": left.chain,
        "chains": lambda: [] if context.params.get("all_chains") else [left.chain],
        "path": left.second_journal,
        "sources": left.sources,
    }


demo_option: Final = click.option(
    # After --config, which is eager, and before all that the call does not name.
    "--demo", is_flag=True, expose_value=False, callback=_take_last_demo,
    help="Take servers, chain and files from the last demo, where no option names others.",
)  # fmt: skip
