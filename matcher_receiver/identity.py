"""One identity: the parts of a receiver are of its chain, and of its name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orderchain.errors import SettingError

if TYPE_CHECKING:
    from matcher_receiver.config import ReceiverConfig
    from orderchain.mark import ChainHead
    from orderchain.ports import (
        CheckpointStore,
        FrameSource,
        GapSource,
        HeadReports,
        SnapshotStore,
    )


def check_parts(
    config: ReceiverConfig,
    gap_source: GapSource,
    checkpoints: CheckpointStore | None,
    reports: HeadReports | None,
    snapshots: SnapshotStore | None,
) -> None:
    """Refuse parts of another chain or name, before any of them is used. Raises SettingError.

    Rows of another chain would be handed on as this one's, and under another receiver's name its
    place would be taken for ours: what it has worked off would be skipped.
    """
    of_a_chain = {
        "gap source": gap_source,
        "checkpoints": checkpoints,
        "reports": reports,
        "snapshots": snapshots,
    }
    for what, part in of_a_chain.items():
        if part is not None and part.chain_id != config.chain_id:
            raise SettingError(f"chain of the {what}", part.chain_id, f"chain {config.chain_id}")
    for what, named in {"checkpoints": checkpoints, "reports": reports}.items():
        if named is not None and config.name not in (None, named.receiver):
            expected = f"{config.name!r}, the receiver's name"
            raise SettingError(f"receiver of the {what}", named.receiver, expected)


def check_chain(config: ReceiverConfig, head: ChainHead, frames: FrameSource) -> None:
    """Refuse a database that speaks of another chain, and frames of another topic.

    Raises SettingError.
    """
    if head.chain_id != config.chain_id:
        raise SettingError("gap source's chain", head.chain_id, f"chain {config.chain_id}")
    if frames.place not in (None, (head.topic, head.partition)):
        expected = f"{(head.topic, head.partition)}, those of chain {config.chain_id}"
        raise SettingError("topic and partition", frames.place, expected)
