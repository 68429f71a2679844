"""Gives the engine's parts what the settings say."""

from __future__ import annotations

import os
import platform
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

    from chainctl.settings import Settings
    from gapfill import PreferredSources
    from matcher_receiver import PostgresHeadReports
    from orderchain.ports import GapSource
    from sequencer import SequencerConfig


_COMMIT_SECONDS: Final = 4.0
_COMMIT_PART_OF_LEASE: Final = 0.8
"""A commit gives up before a standby takes over: it is never the standby that has to find out."""


def sequencer_config(
    settings: Settings, chain_id: int, *, unsafe_durability: bool = False, standby: bool = False
) -> SequencerConfig:
    """Return the config of a sequencer of `chain_id`. Raises SettingError."""
    from sequencer import SequencerConfig

    return SequencerConfig(
        chain_id=chain_id,
        database=settings.database_dsn(),
        kafka=settings.kafka_config(),
        name=f"{platform.node() or 'unknown'}:{os.getpid()}",
        batch_rows_max=settings.batch_rows,
        connect_seconds=settings.connect_seconds,
        lease_seconds=settings.lease_seconds,
        commit_seconds=min(_COMMIT_SECONDS, settings.lease_seconds * _COMMIT_PART_OF_LEASE),
        id_strategy=settings.id_strategy,
        unsafe_durability=unsafe_durability,
        standby=standby,
    )


def gap_source(settings: Settings, chain_id: int) -> PreferredSources:
    """Return what reads `chain_id` with the read-only role: standbys first, the primary last.

    Raises SettingError.
    """
    from gapfill import GapReaderConfig, PreferredSources

    *standbys, primary = settings.gap_dsns()
    config = GapReaderConfig(
        database=primary, chain_id=chain_id, connect_seconds=settings.connect_seconds
    )
    return PreferredSources.of_databases(config, standbys)


def with_archive(databases: GapSource, archive: Path, chain_id: int) -> GapSource:
    """Return what reads from the archive what the `databases` have dropped."""
    # Imported only here: an archive needs pyarrow, which nothing else in a receiver needs.
    from chain_verifier.archive.archived_rows import ArchivedRows
    from gapfill import WithArchive

    return WithArchive(databases, ArchivedRows(archive, chain_id))


def head_reports(
    settings: Settings, chain_id: int, name: str, *, is_lasting: bool
) -> PostgresHeadReports | None:
    """Return what reports to `database` on a receiver that keeps its own place; None without one.

    Only one that is to last reports how far it has come: otherwise, an export made once would keep
    old rows from being archived forever. Raises SettingError where it cannot.
    """
    from matcher_receiver import CheckpointConfig, PostgresHeadReports

    if not settings.database and not is_lasting:
        return None
    config = CheckpointConfig(
        database=settings.database_dsn(),
        chain_id=chain_id,
        name=name,
        connect_seconds=settings.connect_seconds,
    )
    return PostgresHeadReports(config, reports_head=is_lasting)
