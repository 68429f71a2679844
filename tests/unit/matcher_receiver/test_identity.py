"""One identity: what a receiver is given is of its chain, and of its name, or it does not start."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from chain_kernel.errors import SettingError
from matcher_receiver import Receiver, ReceiverConfig
from tests.builders.chains import CHAIN_ID, make_chain
from tests.virtual import virtual

from .memory import MemoryCheckpoints, MemoryFrames, MemorySource
from .rig import Rig

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
        f"topic and partition was .*{OTHER}.*, expected .*orders.{CHAIN_ID}",
    ),
}


def _snapshots(folder: Path) -> object:
    from matcher_receiver import FileSnapshotStore

    return FileSnapshotStore(folder, OTHER)


@pytest.mark.parametrize("what", WRONG)
@virtual
async def test_part_of_another_receiver_is_refused(what: str, tmp_path: Path) -> None:
    make, expected = WRONG[what]
    rig = Rig([4])
    parts = {"frames": rig.frames, "gap_source": rig.source, **make(tmp_path)}
    receiver = Receiver(ReceiverConfig(chain_id=CHAIN_ID, name="mine"), **parts)
    with pytest.raises(SettingError, match=expected):
        async with receiver:
            pass
    assert parts["gap_source"].is_closed


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
