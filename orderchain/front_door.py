"""Wires parts together: a receiver, and what reads rows as it does. Only `orderchain/__init__.py`
imports this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from chain_kernel.errors import SettingError
from chain_kernel.process import calm_collector
from chain_verifier.local.state import Moment, fold_up_to
from gapfill import GapReader, GapReaderConfig, PreferredSources
from matcher_receiver import (
    ChainFrames,
    CheckpointConfig,
    PostgresCheckpointStore,
    PostgresHeadReports,
    PostgresShadowStore,
    Receiver,
)
from matcher_receiver.receiver import check_parts

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime
    from random import Random

    from chain_kernel.clock import Clock
    from chain_kernel.ports import (
        CheckpointStore,
        FrameSource,
        GapSource,
        ShadowStore,
        SnapshotStore,
    )
    from chain_verifier.dataframe.fold import Fold
    from chain_verifier.local.state import StateAsOf
    from matcher_receiver import ReceiverConfig, State

_State = TypeVar("_State")


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
    shadow_of: str | ShadowStore | None = None,
) -> Receiver:
    """Return the receiver that `config` describes, to be entered: `async with open_receiver(...)`.

    Parts that are not passed in are built from `config`: the reader of missing rows from
    `gap_databases`; the frames from `kafka` and the topic that the chain's row names, or where its
    leader has no broker, from the notifications of the database; and from `database` what keeps the
    checkpoint, or reports a place that is kept elsewhere. Parts that are passed in must have the
    same chain and name, which the receiver checks at its start, and are closed with it. Nothing is
    connected before the receiver is entered.

    With `shadow_of`, another receiver's name or a `ShadowStore`, it is its shadow: a candidate
    without effects, whose states are compared with those that the other gives to `checkpoint`.
    It follows at the other's place, never comes past it, keeps no place of its own, and retention
    does not wait for it. `config.name` is the shadow's own name. The first difference is logged, is
    in `stats().shadow` and the metrics, and is shown by `chainctl status`.

    Raises:
        SettingError: `config` lacks what a part needs.
    """
    if config.tuning.calm_collector:
        calm_collector()
    shadow = None if shadow_of is None else _shadow_store(config, shadow_of)
    if checkpoints is None and shadow is None:
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
        shadow=shadow,
    )


async def state_as_of(
    config: ReceiverConfig,
    fold: Fold[_State],
    group: str | None = None,
    *,
    id: int | None = None,  # noqa: A002 - the protocol's own word
    committed: datetime | None = None,
    event: datetime | None = None,
    gap_source: GapSource | None = None,
    archive: str | None = None,
    snapshots: SnapshotStore | None = None,
) -> StateAsOf[_State]:
    """Return the state of a group, or of a whole chain, as of an id or a time.

    Orders come as a receiver fills a gap: from `gap_databases`, in their order, proven by their
    seals. What comes after the moment is not applied. With `snapshots` and `restore` of the fold it
    begins after the newest snapshot up to the moment, unless that is an event's time. `is_final` is
    False while orders up to a time may still come.

    Args:
        config: the chain and its databases, as for `open_receiver`.
        fold: orders applied to a state.
        group: whose state; None for a fold without `group`.
        id: up to the last order whose id is not above this.
        committed: up to the last batch committed at or before this, by the sequencer's clock.
        event: the orders whose own time is not after this; all are read, since it may fall.
        gap_source: rows of the same chain from elsewhere, such as `MemoryChain.gap_source()`;
            closed afterwards.
        archive: the folder or URL that holds rows which the database no longer has.
        snapshots: states that a service has stored.

    Raises:
        SettingError: not exactly one moment is given, it is before the first order, above the head
            or not over; the group has no orders; or fold, group, snapshots and chain do not fit
            together.
        InputError: the fold raised an error, or a snapshot is of rows that the chain does not have.
        RowsArchived: rows are in an archive, and none is given.
        HaltError: rows contradict their seals, as in a fill.
        RetryError: the database does not answer, or a standby lacks rows.
    """
    source = gap_source or _gap_source(config)
    try:
        moment = Moment(id=id, committed=committed, event=event)
        check_parts(config, source, None, snapshots)
        if archive is not None:
            # Imported only here: an archive needs pyarrow.
            from chain_verifier.archive.archived_rows import ArchivedRows
            from chain_verifier.archive.backed_source import ArchiveBackedSource
            from chain_verifier.places import place_of

            rows = ArchivedRows(place_of("archive", archive), source.chain_id)
            source = ArchiveBackedSource(source, rows)
        return await fold_up_to(source, fold, group, moment, snapshots)
    finally:
        await source.close()


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
    stored = _store_of(config)
    return PostgresCheckpointStore(stored) if is_stored else PostgresHeadReports(stored)


def _shadow_store(config: ReceiverConfig, shadow_of: str | ShadowStore) -> ShadowStore:
    if not isinstance(shadow_of, str):
        return shadow_of
    return PostgresShadowStore(_store_of(config), shadow_of)


def _store_of(config: ReceiverConfig) -> CheckpointConfig:
    if config.database is None:
        expected = "the chain's primary, which keeps checkpoints, and the states that are compared"
        raise SettingError("database", None, expected)
    if config.name is None:
        raise SettingError("name", None, "the receiver's name, under which its place is stored")
    return CheckpointConfig(
        database=config.database,
        chain_id=config.chain_id,
        name=config.name,
        connect_seconds=config.tuning.connect_seconds,
        statement_seconds=config.tuning.statement_seconds,
        close_seconds=config.tuning.close_seconds,
        gaps_kept=config.tuning.gaps_kept,
    )
