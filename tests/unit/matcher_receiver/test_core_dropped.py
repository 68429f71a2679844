"""Frames that are of no use: dropped, counted by their reason, at worst the cause of a read."""

import asyncio

import msgspec
import pytest

from chain_kernel.model import Event
from tests.builders.chains import NEXT_NONCE, Chain, ids_of, signed
from tests.virtual import virtual

from .rig import Rig, take

OTHER_SEAL = b"\7" * 32


def of_no_use(rig: Rig) -> dict[str, bytes | None]:
    """Frames of every bad kind, as they come when the chain's last batch was delivered."""
    chain = rig.chain
    next_batch = Chain(chain.chain_id, chain.database_id, seed=9)
    next_batch.batches, next_batch.epoch = list(chain.batches), chain.epoch
    next_batch.nonce = chain.nonce
    (header, events), *_ = next_batch.headers(next_batch.add(4))
    whole = signed(header, events)
    replace = msgspec.structs.replace
    beyond = header.last_id + 1_000
    phantom = replace(header, first_pid=beyond, first_id=beyond + 1, last_id=beyond + 1, count=1)
    broken_link = [events[0], Event(events[1].id, 1, "k", 0, b""), *events[2:]]
    heartbeat = chain.heartbeat_header()
    return {
        "empty": None,
        "truncated": whole[:20],
        "mac": whole[:-1] + bytes([whole[-1] ^ 1]),
        "mac of another leader": signed(header, events, NEXT_NONCE),
        "mac of a heartbeat": signed(heartbeat, [], NEXT_NONCE),
        "mac of a phantom": signed(phantom, [Event(beyond + 1, beyond, "k", 0, b"")], NEXT_NONCE),
        "chain": signed(replace(header, chain_id=header.chain_id + 1), events),
        "nonce": signed(replace(header, publisher_nonce=b"nobody knows me!"), events),
        "seal": signed(replace(header, seal_before=OTHER_SEAL), events),
        "seal of a heartbeat": signed(replace(heartbeat, seal_before=OTHER_SEAL), []),
        "epoch": signed(replace(header, epoch=header.epoch - 1), events),
        "link": signed(header, broken_link),
        "phantom": signed(phantom, [Event(beyond + 1, beyond, "phantom", 0, b"")]),
        "old": chain.frames(chain.batches[-1])[0],
        "old heartbeat": old_heartbeat(chain),
    }


def old_heartbeat(chain: Chain) -> bytes:
    before = chain.batches[-1]
    header = msgspec.structs.replace(
        chain.heartbeat_header(), first_pid=before.pid, first_id=before.pid, last_id=before.pid
    )
    return signed(header, [])


def reason_of(kind: str) -> str:
    return kind.partition(" ")[0]


KINDS = [
    "empty", "truncated", "mac", "mac of another leader", "mac of a heartbeat", "mac of a phantom",
    "chain", "nonce", "seal", "seal of a heartbeat", "epoch", "link",
    "phantom", "old", "old heartbeat",
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@virtual
async def test_frame_of_no_use_is_counted_by_its_reason_and_delivery_goes_on(kind: str) -> None:
    rig = Rig([3, 3])
    async with rig.live(poll_after_seconds=600.0) as receiver:
        head, reads = receiver.head_delivered, rig.source.reads
        rig.frames.put(of_no_use(rig)[kind])
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(receiver), 1.0)
        assert receiver.head_delivered == head
        rig.commit_and_publish(5)
        runs = await take(receiver, rig.chain.mark().id)
        assert ids_of(runs) == [row_id for row_id in rig.chain.ids if row_id > head]
        stats = receiver.stats()
        assert (stats.rows_live, stats.gaps) == (5, 0)
        assert rig.source.reads - reads <= 1, "at worst a read"
        if reason_of(kind) == "old":
            assert (stats.duplicates_dropped, stats.dropped) == (1, {})
        else:
            assert stats.dropped == {reason_of(kind): 1}


@virtual
async def test_flood_of_phantoms_of_a_leader_costs_few_reads_and_live_frames_flow() -> None:
    rig = Rig([3, 3])
    async with rig.live(poll_after_seconds=600.0, check_seconds=0.1) as receiver:
        reads = rig.source.reads
        for _ in range(10):
            phantom = of_no_use(rig)["phantom"]
            frames = rig.chain.frames(rig.chain.add(5))
            rig.frames.put(*[phantom] * 200, *frames, *[phantom] * 200)
            await take(receiver, rig.chain.mark().id)
            await asyncio.sleep(0.05)
        stats = receiver.stats()
        assert (stats.rows_live, stats.gaps) == (50, 0)
        assert sum(stats.dropped.values()) == 10 * 200 + 9 * 200
        assert 1 <= stats.dropped["phantom"] == rig.source.reads - reads <= 6
