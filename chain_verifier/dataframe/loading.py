"""A fold by its name, as commands are given it."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from chain_kernel.errors import SettingError
from chain_kernel.text import reason_of
from chain_verifier.dataframe.fold import Fold


def load_fold(name: str) -> Fold[Any]:
    """Return the fold `MODULE:NAME`; modules of the current folder count. Raises SettingError."""
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise SettingError("MODULE:FOLD", name, "a fold, as MODULE:NAME")
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        found = getattr(import_module(module), attribute, None)
    except Exception as error:  # whatever a module of a user does when it is imported
        raise SettingError("MODULE:FOLD", name, f"a module ({reason_of(error)})") from error
    if not isinstance(found, Fold):
        raise SettingError("MODULE:FOLD", name, "an orderchain.Fold of this name in the module")
    return found
