"""The choice for the hottest functions: the implementation in Python, or the compiled one.

`orderchain-speed` is a distribution of its own, which nothing requires. What it does, the function
that asks for it also does in Python, with the same bytes and the same refusals: Python is the
reference. So it returns None for whatever is not plain, and Python finds out what to say of it.

ORDERCHAIN_IMPL says which runs: `python`, or `native`, which is the default where it is installed.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any, Final, Literal

from chain_kernel.errors import SettingError

_VARIABLE: Final = "ORDERCHAIN_IMPL"
_MODULE: Final = "orderchain_speed"
_API: Final = 1
"""Version of what the compiled functions take and return; another number is another release's."""


def load(wanted: str | None) -> Any | None:  # noqa: ANN401 - a module without stubs
    """Return the compiled module, or None for Python. Raises SettingError."""
    if wanted not in (None, "", "python", "native"):
        raise SettingError(_VARIABLE, wanted, "python or native")
    if wanted == "python":
        return None
    try:
        module = import_module(_MODULE)
    except ImportError:
        if wanted == "native":
            raise SettingError(_VARIABLE, wanted, "orderchain-speed to be installed") from None
        return None
    if module.API != _API:
        if wanted == "native":
            expected = f"an orderchain-speed of this release, which has API {_API}"
            raise SettingError(_VARIABLE, wanted, expected)
        return None
    return module


native: Any | None = load(os.environ.get(_VARIABLE))
"""The compiled functions, if they run."""


def implementation() -> Literal["python", "native"]:
    """Return which implementation runs, by its name."""
    return "python" if native is None else "native"
