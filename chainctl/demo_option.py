"""`--demo`: a command looks at what the last demo has left."""

from __future__ import annotations

from typing import Final

import click

from chain_kernel.errors import SettingError
from chainctl.commands.stack import stack_of
from chainctl.settings import DEMO, ENVIRONMENT_PREFIX, load_settings


def _take_last_demo(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    """Make what the last demo has left the default of every option. Raises SettingError."""
    if not wanted or context.resilient_parsing:
        return
    from local_stack.last_demo import last_demo

    stack = stack_of(load_settings().settings)
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
        "chains": [left.chain],
        "path": left.second_journal,
        "sources": left.sources,
    }


demo_option: Final = click.option(
    "--demo", is_flag=True, is_eager=True, expose_value=False, callback=_take_last_demo,
    help="Take servers, chain and files from the last demo, where no option names others.",
)  # fmt: skip
