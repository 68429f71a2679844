"""A sequencer that is traced sends the frames that it would have sent, byte by byte."""

from collections.abc import Sequence

from opentelemetry.trace import StatusCode

from chain_kernel.testing.memory_log import MemoryFrameSink, SendFault
from chain_kernel.testing.memory_store import CommitFault
from chain_kernel.testing.virtual_loop import run_virtual, virtual_clock
from tests.builders.orders import make_orders
from tests.builders.spans import id_of, parent_of, recorded_spans

from .builders import World


class ListeningSink(MemoryFrameSink):
    """A broker that notes what came with the frames of each send."""

    traceparents: list[Sequence[str]]

    async def send(self, frames: Sequence[bytes], traceparents: Sequence[str] = ()) -> None:
        self.traceparents.append(traceparents)
        await super().send(frames, traceparents)


def lived() -> tuple[World, ListeningSink]:
    """Commit two batches, the first with a lost answer; the first send of a frame is repeated."""
    world = World()
    world.sink = sink = ListeningSink(world.log)
    sink.traceparents = []

    async def main() -> None:
        async with world.sequencer(virtual_clock(), heartbeat_seconds=60.0) as sequencer:
            sink.faults.append(SendFault.STORED)
            await sequencer.submit_many(make_orders(30))
            world.store.faults.append(CommitFault.LOST_AFTER)
            await sequencer.submit("last", b"payload")

    run_virtual(main(), seed=1)
    return world, sink


def test_frames_are_the_same_with_and_without_traces() -> None:
    plain, plain_sink = lived()
    with recorded_spans():
        traced, traced_sink = lived()
    assert traced.log.records == plain.log.records
    assert all(sent == () for sent in plain_sink.traceparents)
    assert any(any(sent) for sent in traced_sink.traceparents)


def test_send_that_is_repeated_has_two_spans_in_the_trace_of_its_commit() -> None:
    with recorded_spans() as spans:
        lived()
    first, last = spans.named("orderchain.commit")
    sends = spans.named("orderchain.publish")
    assert [parent_of(one) for one in sends] == [id_of(first)] * 2 + [id_of(last)]
    assert [one.status.status_code for one in sends] == [
        StatusCode.ERROR, StatusCode.UNSET, StatusCode.UNSET
    ]  # fmt: skip
    # The answer was lost and read back: one commit, and one span, which is no failure.
    assert last.status.status_code is StatusCode.UNSET
