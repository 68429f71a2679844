"""Groups of commands that help with a name that was misspelt."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Sequence


class SuggestingGroup(click.Group):
    """A group of commands; an unknown one suggests the nearest."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that `args` begin with."""
        known = self.list_commands(ctx)
        if args[0] not in known and not args[0].startswith("-"):
            ctx.fail(unknown_command(args[0], known))
        return super().resolve_command(ctx, args)


def unknown_command(name: str, known: Sequence[str]) -> str:
    """Return what to say of a command that is not there."""
    nearest = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {nearest[0]!r}?" if nearest else f"expected one of {', '.join(known)}"
    return f"unknown command {name!r}, {hint}"
