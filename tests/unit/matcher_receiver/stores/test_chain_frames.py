"""Where a receiver's frames come from, and how often it asks that."""

import pytest

from chain_kernel.testing.memory_log import MemoryFrameSource, MemoryLog
from matcher_receiver import ChainFrames, ReceiverConfig
from matcher_receiver.stores import chain_frames
from tests.builders.chains import make_chain
from tests.unit.matcher_receiver.memory import MemorySource
from tests.virtual import virtual


@virtual
async def test_receiver_that_can_only_listen_asks_rarely_whether_the_chain_is_published(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    heard = MemoryFrameSource(MemoryLog(), has_rows=False)
    monkeypatch.setattr(chain_frames, "NotifiedFrames", lambda *_: heard)
    source = MemorySource(make_chain([4]))
    config = ReceiverConfig(chain_id=source.chain_id, gap_databases=("postgresql://127.0.0.1/x",))
    frames = ChainFrames(config, source)
    await frames.start()
    asked = source.reads
    for _ in range(70):
        assert await frames.records(1.0) == []
    assert source.reads - asked == 2
