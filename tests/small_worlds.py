"""Configs with bounds so small that no user may have them: for worlds of a few hundred orders."""

from __future__ import annotations

from typing import TypeVar

import msgspec
from msgspec.structs import force_setattr

from chain_kernel.config import Config

_Config = TypeVar("_Config", bound=Config)


def scaled_down(config: _Config, **settings: int) -> _Config:
    """Return `config` with values below their bounds, which its constructor would refuse."""
    copy = msgspec.structs.replace(config)
    for name, value in settings.items():
        force_setattr(copy, name, value)
    return copy
