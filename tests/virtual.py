"""Async tests in virtual time."""

from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from chain_kernel.testing.virtual_loop import run_virtual

P = ParamSpec("P")
T = TypeVar("T")


def virtual(test: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """Run an async test in virtual time; it may take fixtures and parameters."""

    @wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        return run_virtual(test(*args, **kwargs))

    return run
