"""Options that commands share, and groups of commands."""

from __future__ import annotations

import difflib
import functools
import math
import os
from typing import TYPE_CHECKING, Any, Final

import click

from chainctl.logs import Subject, set_up_logging
from chainctl.settings import (
    DEFAULT_CONFIG,
    description,
    flag_of,
    flagged,
    load_settings,
    may_be_many,
    variable_of,
)
from orderchain.limits import CHAIN_ID_MAX, ID_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from chainctl.settings import SourcedSettings


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
    """Return the message for an unknown command."""
    nearest = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {nearest[0]!r}?" if nearest else f"expected one of {', '.join(known)}"
    return f"unknown command {name!r}, {hint}"


SECRETS: Final = "chainctl.secrets"
"""Where the passwords of this call are kept in click's context, so that errors can hide them."""

IS_DEBUG: Final = "chainctl.is_debug"
"""The key, in click's context, for whether errors show their traceback."""


class Integer(click.IntRange):
    """A whole number within bounds."""

    name = "integer"


class Seconds(click.FloatRange):
    """A time span within bounds, above 0."""

    name = "number"

    def __init__(self, maximum: float) -> None:
        super().__init__(0, maximum, min_open=True)

    def convert(
        self, value: float, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return `value` as a number; refuse NaN, which no check of the bounds finds."""
        seconds = float(super().convert(value, param, ctx))
        if math.isnan(seconds):
            self.fail("NaN is no time span", param, ctx)
        return seconds


CHAIN_ID: Final = Integer(1, CHAIN_ID_MAX)
ROW_ID: Final = Integer(0, ID_MAX)

chain_option: Final = click.option(
    "--chain", "chain_id", type=CHAIN_ID, required=True, metavar="N", help="The chain."
)

json_option: Final = click.option(
    "--json", "as_json", is_flag=True, help="Write JSON to stdout, for machines."
)


def uses_settings(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command the flags of the settings `names`, and the argument `settings`.

    `log_level` and `--config` come with every command. A command that uses `log_format` runs long:
    its log lines have a time.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def with_settings(*args: object, **options: Any) -> object:  # noqa: ANN401 - click's own
            sourced = _taken(options, names)
            return function(*args, settings=sourced.settings, **options)

        return _with_flags(with_settings, names)

    return decorate


def uses_sourced_settings(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Do as `uses_settings`, but with the argument `sourced`, which shows where each came from."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def with_settings(*args: object, **options: Any) -> object:  # noqa: ANN401 - click's own
            return function(*args, sourced=_taken(options, ()), **options)

        return _with_flags(with_settings, names)

    return decorate


def _with_flags(function: Callable[..., Any], names: tuple[str, ...]) -> Callable[..., Any]:
    config = click.option(
        "--config",
        "setting_config",
        metavar="FILE",
        help=f"TOML file with settings. [env: CHAINCTL_CONFIG; else ./{DEFAULT_CONFIG}]",
    )
    decorated = config(function)
    for name in reversed(flagged((*names, "log_level"))):
        is_many = may_be_many(name)
        repeated = " May be repeated." if is_many else ""
        decorated = click.option(
            flag_of(name),
            f"setting_{name}",
            metavar="VALUE",
            multiple=is_many,
            help=f"{_sentence(description(name))}{repeated} [env: {variable_of(name)}]",
        )(decorated)
    return decorated


def _taken(options: dict[str, Any], names: tuple[str, ...]) -> SourcedSettings:
    """Take the settings' flags out of `options`, and return the settings."""
    flags = {
        name.removeprefix("setting_"): _text_of(options.pop(name))
        for name in list(options)
        if name.startswith("setting_")
    }
    config = flags.pop("config")
    sourced = load_settings(flags, os.environ, config)
    context = click.get_current_context()
    meta = context.meta
    meta[SECRETS] = sourced.settings.secrets()
    meta[IS_DEBUG] = sourced.settings.log_level == "debug"
    running = None
    if "log_format" in names:
        running = Subject(context.params.get("chain_id"), context.params.get("name"))
    set_up_logging(sourced.settings, running)
    return sourced


def _text_of(given: str | tuple[str, ...] | None) -> str | None:
    """Return what a flag gave; the flag may be repeated."""
    if isinstance(given, tuple):
        return " ".join(given) or None
    return given


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."
