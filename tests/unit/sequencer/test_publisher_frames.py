from hypothesis import given
from hypothesis import strategies as st

from chain_kernel.frame import decode_body, decode_header
from chain_kernel.limits import FRAME_BYTES_MIN, PAYLOAD_BYTES_MAX
from sequencer.core import SequencerCore
from sequencer.order import Order
from sequencer.publisher import batch_frames
from tests.builders.orders import make_orders

from .builders import WALL_NS, make_term


def test_small_batch_becomes_one_frame_with_its_seals() -> None:
    term = make_term(epoch=3)
    batch = SequencerCore(term, takeover_skip_ids=0).assemble(make_orders(4), WALL_NS)
    (frame,) = batch_frames(batch, term, FRAME_BYTES_MIN)
    header = decode_header(frame)
    assert decode_body(frame, header) == batch.events
    assert (header.seal_before, header.seal_after) == (batch.seal_before, batch.seal)
    assert header.is_batch_end
    assert header.publisher_nonce == term.nonce


def test_tail_of_an_older_epoch_keeps_it_beside_the_publishers() -> None:
    batch = SequencerCore(make_term(epoch=3), takeover_skip_ids=0).assemble(make_orders(1), WALL_NS)
    (frame,) = batch_frames(batch, make_term(epoch=5), FRAME_BYTES_MIN)
    header = decode_header(frame)
    assert (header.epoch, header.publisher_epoch) == (3, 5)


@given(sizes=st.lists(st.integers(0, PAYLOAD_BYTES_MAX), min_size=1, max_size=12))
def test_any_batch_is_cut_into_frames_within_the_limit(sizes: list[int]) -> None:
    term = make_term()
    orders = [Order(f"k{n}", bytes(size)) for n, size in enumerate(sizes)]
    batch = SequencerCore(term, takeover_skip_ids=0).assemble(orders, WALL_NS)
    frames = batch_frames(batch, term, FRAME_BYTES_MIN)
    assert all(len(frame) <= FRAME_BYTES_MIN for frame in frames)
    headers = [decode_header(frame) for frame in frames]
    events = [
        event
        for frame, header in zip(frames, headers, strict=True)
        for event in decode_body(frame, header)
    ]
    assert events == batch.events
    assert [header.is_batch_end for header in headers] == [False] * (len(frames) - 1) + [True]
