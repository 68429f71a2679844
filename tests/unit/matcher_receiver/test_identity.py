"""One identity: what a receiver is given is of its chain, and of its name, or it does not start."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from chain_kernel.errors import SettingError
from chain_verifier.archive.backed_source import ArchiveBackedSource
from gapfill import GapReader, GapReaderConfig, PreferredSources
from matcher_receiver import CheckpointConfig, Receiver, ReceiverConfig
from tests.builders.chains import CHAIN_ID, make_chain

from .memory import MemoryCheckpoints, MemoryFrames, MemorySource
from .rig import Rig, virtual

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

OTHER = CHAIN_ID + 1


class OtherTopic(MemoryFrames):
    @property
    def place(self) -> tuple[str, int]:
        return f"orderchain.{OTHER}", 0


class Lying(MemorySource):
    """Says that it is of the chain, and reads another one."""

    @property
    def chain_id(self) -> int:
        return CHAIN_ID


def of_another_chain() -> MemorySource:
    chain = make_chain([4])
    chain.chain_id = OTHER
    return MemorySource(chain)


def reading_another_chain() -> MemorySource:
    chain = make_chain([4])
    chain.chain_id = OTHER
    return Lying(chain)


WRONG: dict[str, tuple[Callable[[Path], dict[str, Any]], str]] = {
    "gap source": (
        lambda _: {"gap_source": of_another_chain()},
        f"chain of the gap source was {OTHER}, expected chain {CHAIN_ID}",
    ),
    "what the gap source reads": (
        lambda _: {"gap_source": reading_another_chain()},
        f"gap source's chain was {OTHER}, expected chain {CHAIN_ID}",
    ),
    "checkpoints": (
        lambda _: {"checkpoints": MemoryCheckpoints(OTHER, "mine")},
        f"chain of the checkpoints was {OTHER}, expected chain {CHAIN_ID}",
    ),
    "name of the checkpoints": (
        lambda _: {"checkpoints": MemoryCheckpoints(CHAIN_ID, "theirs")},
        "receiver of the checkpoints was 'theirs', expected 'mine', the receiver's name",
    ),
    "snapshots": (
        lambda folder: {"snapshots": _snapshots(folder)},
        f"chain of the snapshots was {OTHER}, expected chain {CHAIN_ID}",
    ),
    "topic": (
        lambda _: {"frames": OtherTopic()},
        f"topic and partition was .*{OTHER}.*, expected .*orderchain.{CHAIN_ID}",
    ),
}


def _snapshots(folder: Path) -> object:
    from matcher_receiver import FileSnapshotStore

    return FileSnapshotStore(folder, OTHER)


@pytest.mark.parametrize("what", WRONG)
def test_receiver_with_a_part_that_is_not_its_own_does_not_start(what: str, tmp_path: Path) -> None:
    make, expected = WRONG[what]

    @virtual
    async def story() -> None:
        rig = Rig([4])
        parts = {"frames": rig.frames, "gap_source": rig.source, **make(tmp_path)}
        receiver = Receiver(ReceiverConfig(chain_id=CHAIN_ID, name="mine"), **parts)
        with pytest.raises(SettingError, match=expected):
            async with receiver:
                pass
        assert parts["gap_source"].is_closed

    story()


def test_name_of_a_checkpoint_has_no_default() -> None:
    with pytest.raises(TypeError, match="name"):
        CheckpointConfig(database="postgresql://db/x", chain_id=1)  # type: ignore[call-arg]


def reader_of(chain_id: int) -> GapReader:
    return GapReader(GapReaderConfig(database="postgresql://db/x", chain_id=chain_id))


def test_servers_of_several_chains_are_not_one_source() -> None:
    with pytest.raises(SettingError, match="chains of the sources"):
        PreferredSources([reader_of(1), reader_of(2)])
    assert PreferredSources([reader_of(2), reader_of(2)]).chain_id == 2


def test_archive_of_another_chain_is_refused(tmp_path: Path) -> None:
    from chain_verifier.archive.archived_rows import ArchivedRows

    with pytest.raises(SettingError, match="chain of the archive was 2, expected chain 1"):
        ArchiveBackedSource(reader_of(1), ArchivedRows(tmp_path, 2))
    assert ArchiveBackedSource(reader_of(2), ArchivedRows(tmp_path, 2)).chain_id == 2


@virtual
async def test_checkpoint_of_a_run_of_another_receiver_is_refused() -> None:
    rig = Rig([4, 4])
    rig.source.page_rows = 4
    start = rig.chain.mark(rig.chain.batches[0].last_id)
    async with rig.receiver() as first:
        before = await anext(first)
        async with rig.receiver(start=start) as second:
            later = await anext(second)
            whole = msgspec.structs.replace(before, end=later.end)
            with pytest.raises(SettingError, match=f"run was 0, expected a run after {start.id}"):
                await second.checkpoint(whole)
