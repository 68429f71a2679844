"""Wires the parts of a receiver together. Only `orderchain/__init__.py` imports this."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chain_kernel.errors import SettingError
from chain_kernel.process import calm_collector
from gapfill import GapReader, GapReaderConfig, PreferredSources
from gapfill.config import LINGER_SECONDS
from matcher_receiver import (
    ChainFrames,
    CheckpointConfig,
    PostgresCheckpointStore,
    PostgresHeadReports,
    Receiver,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from chain_kernel.clock import Clock
    from chain_kernel.ports import (
        CheckpointStore,
        FrameSource,
        GapSource,
        SnapshotStore,
    )
    from matcher_receiver import ReceiverConfig, State


def open_receiver(
    config: ReceiverConfig,
    *,
    frames: FrameSource | None = None,
    gap_source: GapSource | None = None,
    checkpoints: CheckpointStore | None = None,
    snapshots: SnapshotStore | None = None,
    on_state: Callable[[State], None] | None = None,
    clock: Clock | None = None,
    random: Random | None = None,
) -> Receiver:
    """Return the receiver that `config` describes, to be entered: `async with open_receiver(...)`.

    Parts that are not passed in are built from `config`: the reader of missing rows from
    `gap_databases`; the frames from `kafka` and the topic that the chain's row names, or where its
    leader has no broker, from the notifications of the database; and from `database` what keeps the
    checkpoint, or reports a place that is kept elsewhere. Parts that are passed in must have the
    same chain and name, which the receiver checks at its start, and are closed with it. Nothing is
    connected before the receiver is entered.

    Raises:
        SettingError: `config` lacks what a part needs.
    """
    if config.tuning.calm_collector:
        calm_collector()
    if checkpoints is None:
        checkpoints = _checkpoints(config, keeps_snapshots=snapshots is not None)
    source = gap_source or _gap_source(config)
    if frames is None:
        frames = ChainFrames(config, source)
    return Receiver(
        config,
        frames,
        source,
        checkpoints,
        clock,
        snapshots=snapshots,
        on_state=on_state,
        random=random,
    )


def _gap_source(config: ReceiverConfig) -> GapSource:
    databases = config.gap_databases or tuple(filter(None, [config.database]))
    if not databases:
        expected = "the database in which missing rows are read, unless `database` may read them"
        raise SettingError("gap_databases", (), expected)
    *standbys, primary = databases
    reader = GapReaderConfig(
        database=primary,
        chain_id=config.chain_id,
        page_rows=config.tuning.page_rows,
        connect_seconds=config.tuning.connect_seconds,
        statement_seconds=config.tuning.statement_seconds,
        close_seconds=config.tuning.close_seconds,
        linger_seconds=LINGER_SECONDS if config.kafka is None else 0.5,
    )
    return PreferredSources.of_databases(reader, standbys) if standbys else GapReader(reader)


def _checkpoints(config: ReceiverConfig, *, keeps_snapshots: bool) -> CheckpointStore | None:
    """Return what keeps the checkpoint, or what reports a place that the caller keeps."""
    is_stored = config.checkpoint == "stored"
    if config.database is None:
        # Without this check, only a restart would reveal that the place is not kept.
        if is_stored and config.start is None and not keeps_snapshots:
            expected = 'the database that keeps the checkpoint, or checkpoint="reported"'
            raise SettingError("database", None, expected)
        return None
    if config.name is None:
        raise SettingError("name", None, "the receiver's name, under which its place is stored")
    stored = CheckpointConfig(
        database=config.database,
        chain_id=config.chain_id,
        name=config.name,
        connect_seconds=config.tuning.connect_seconds,
        statement_seconds=config.tuning.statement_seconds,
        close_seconds=config.tuning.close_seconds,
        gaps_kept=config.tuning.gaps_kept,
    )
    return PostgresCheckpointStore(stored) if is_stored else PostgresHeadReports(stored)
