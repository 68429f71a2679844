"""Handlers that callers pass in: each must be a function whose call can be awaited."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, TypeVar

from chain_kernel.errors import SettingError
from chain_kernel.tasks import of_others

if TYPE_CHECKING:
    from collections.abc import Awaitable

_T = TypeVar("_T")


class NotAsync(SettingError):
    """A handler is no async function; what a plain one has done before it returned stays done."""

    def __init__(self, found: str, expected: str) -> None:
        super().__init__("handler", found, expected)


def check_handler(handler: object) -> None:
    """Raise NotAsync for what cannot be called, such as `run(handle())` for `run(handle)`.

    A plain function passes, since it may return something to await: see `result_of`.
    """
    if inspect.iscoroutine(handler):
        handler.close()  # it will not be awaited: no warning about it
        raise NotAsync("a coroutine", "the function itself: its name, without ()")
    if not callable(handler):
        raise NotAsync(type(handler).__name__, "an async function")


async def result_of(called: Awaitable[_T]) -> _T:
    """Await what a handler has returned. Raises NotAsync where that is nothing to await, and
    SelfCancelled as `of_others`.
    """
    if not inspect.isawaitable(called):
        found = f"one that returned {type(called).__name__}"
        raise NotAsync(found, "an async function (async def), or one that returns its call")
    with of_others("the handler"):
        return await called
