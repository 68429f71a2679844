"""Options that several commands take, as decorators."""

from __future__ import annotations

import functools
import math
import os
from typing import TYPE_CHECKING, Any, Final

import click

from chainctl.logs import set_up_logging
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
    from collections.abc import Callable

    from chainctl.settings import SourcedSettings

SECRETS: Final = "chainctl.secrets"
"""Where the passwords of this call are kept in click's context, so that errors can hide them."""

IS_DEBUG: Final = "chainctl.is_debug"
"""Where it is kept whether errors show their traceback."""


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
        """Return `value` as a number; NaN lies within no bounds, but is not outside of them."""
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

    `log_level` and `--config` come with every command.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def with_settings(*args: object, **options: Any) -> object:  # noqa: ANN401 - click's own
            sourced = _taken(options)
            return function(*args, settings=sourced.settings, **options)

        return _with_flags(with_settings, names)

    return decorate


def uses_sourced_settings(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Do as `uses_settings`, but with the argument `sourced`, which tells where each came from."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def with_settings(*args: object, **options: Any) -> object:  # noqa: ANN401 - click's own
            return function(*args, sourced=_taken(options), **options)

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


def _taken(options: dict[str, Any]) -> SourcedSettings:
    """Take the settings' flags out of `options`, and return the settings."""
    flags = {
        name.removeprefix("setting_"): _text_of(options.pop(name))
        for name in list(options)
        if name.startswith("setting_")
    }
    config = flags.pop("config")
    sourced = load_settings(flags, os.environ, config)
    meta = click.get_current_context().meta
    meta[SECRETS] = sourced.settings.secrets()
    meta[IS_DEBUG] = sourced.settings.log_level == "debug"
    set_up_logging(sourced.settings)
    return sourced


def _text_of(given: str | tuple[str, ...] | None) -> str | None:
    """Return what was given by a flag, which may have been repeated."""
    if isinstance(given, tuple):
        return " ".join(given) or None
    return given


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."
