"""Configs of which tests change what they need, with the tuning beside the other settings."""

from typing import Any, TypeVar

from msgspec.structs import force_setattr, replace

from matcher_receiver import ReceiverConfig
from sequencer import SequencerConfig

_Config = TypeVar("_Config", SequencerConfig, ReceiverConfig)


def tuned(config: _Config, **settings: Any) -> _Config:
    """Return `config` with `settings`; those that it has not are changed in its tuning."""
    own = {name: settings[name] for name in settings.keys() & set(config.__struct_fields__)}
    rest = {name: settings[name] for name in settings.keys() - own.keys()}
    return replace(config, **{"tuning": replace(config.tuning, **rest), **own})


def scaled_down(config: _Config, **settings: int) -> _Config:
    """Return `config` with a tuning below its bounds: for worlds of a few hundred orders."""
    copy, tuning = replace(config), replace(config.tuning)
    for name, value in settings.items():
        force_setattr(tuning, name, value)
    force_setattr(copy, "tuning", tuning)
    return copy
