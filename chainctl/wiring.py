"""Gives the engine's parts what the settings say."""

from __future__ import annotations

import os
import platform
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from chainctl.settings import Settings
    from sequencer import SequencerConfig


def sequencer_config(settings: Settings, chain_id: int) -> SequencerConfig:
    """Return the config of a sequencer of `chain_id`. Raises SettingError."""
    from sequencer import SequencerConfig

    return SequencerConfig(
        chain_id=chain_id,
        database=settings.database_dsn(),
        kafka=settings.kafka_servers(),
        owner=f"{platform.node() or 'unknown'}:{os.getpid()}",
        batch_rows_max=settings.batch_rows,
        connect_seconds=settings.connect_seconds,
    )
