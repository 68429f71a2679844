"""Frames of people who can read and write the topic, and cannot read the key: none is believed."""

from urllib.parse import urlsplit

import msgspec
import pytest

from chain_kernel.frame import HEADER_BYTES, MAC_BYTES, FrameHeader, encode_frame
from chain_kernel.model import Event, Run
from chain_kernel.sql import GAP_READER
from gapfill import GapReader, GapReaderConfig
from matcher_receiver import Receiver
from tests.builders.chains import NEXT_NONCE, signed
from tests.builders.stored_chain import StoredChain
from tests.deadlines import deadline, until
from tests.faults.proxy import Proxy, postgres_requests
from tests.lanes import at_night

from .conftest import MakeReceiver, Publish, RoleDsn

FLOOD = 2_000
QUIET = {"poll_after_seconds": 600.0, "check_seconds": 600.0, "prove_seconds": 600.0}
"""No reading for the sake of time, and at most one for the sake of frames."""


async def taken(receiver: Receiver, until_id: int) -> list[Event]:
    events: list[Event] = []
    while not events or events[-1].id < until_id:
        run: Run = await anext(receiver)
        events += run.events
    return events


def invented(stored: StoredChain) -> tuple[FrameHeader, list[Event]]:
    """The next frame, all of it copied from the last one, with a row that no database has."""
    chain = stored.chain
    (last, _), *_ = chain.headers(chain.batches[-1])
    row = Event(last.last_id + 1, last.last_id, "sell everything", 0, b"")
    header = msgspec.structs.replace(
        last, first_pid=row.pid, first_id=row.id, last_id=row.id, count=1,
        seal_before=last.seal_after, seal_after=b"\7" * 32,
    )  # fmt: skip
    return header, [row]


def forgeries(stored: StoredChain) -> dict[str, bytes]:
    header, rows = invented(stored)
    (last, events), *_ = stored.chain.headers(stored.chain.batches[-1])
    genuine, frame = signed(last, events), encode_frame(header, rows, bytes(32))
    at = HEADER_BYTES - MAC_BYTES
    beyond = header.last_id + 10**6
    phantom = msgspec.structs.replace(
        header, first_pid=beyond, first_id=beyond + 1, last_id=beyond + 1
    )
    head = msgspec.structs.replace(
        header, first_pid=beyond, first_id=beyond, last_id=beyond, count=0, seal_after=bytes(32),
        is_batch_end=False,
    )  # fmt: skip
    return {
        "a key of his own": frame,
        "the MAC of another frame": frame[:at] + genuine[at:HEADER_BYTES] + frame[HEADER_BYTES:],
        "a phantom": encode_frame(phantom, [Event(beyond + 1, beyond, "k", 0, b"")], bytes(32)),
        "a heartbeat": encode_frame(head, [], bytes(32)),
    }


@pytest.mark.parametrize(
    "kind", ["the MAC of another frame", *at_night("a key of his own", "a phantom", "a heartbeat")]
)
async def test_flood_of_forged_frames_costs_no_read_and_holds_no_live_frame_up(
    stored: StoredChain, publish: Publish, make_receiver: MakeReceiver, kind: str
) -> None:
    await stored.commit(5)
    async with make_receiver(**QUIET) as receiver:
        await taken(receiver, stored.chain.mark().id)
        reads, expected = receiver.stats().reads, []
        for _ in range(2):
            forged = forgeries(stored)[kind]
            batch = await stored.commit(5)
            await publish([*[forged] * (FLOOD // 2), *stored.chain.frames(batch)])
            expected += batch.events
        assert await taken(receiver, stored.chain.mark().id) == expected
        stats = receiver.stats()
        assert stats.dropped == {"mac": FLOOD}
        assert (stats.reads, stats.rows_live, stats.gaps) == (reads, 10, 0)
        assert receiver.state.value == "live"


async def test_frames_of_an_older_leader_are_believed_without_a_read(
    stored: StoredChain, publish: Publish, make_receiver: MakeReceiver
) -> None:
    await stored.commit(5)
    before = await stored.commit(5)
    older = stored.chain.frames(before)
    stored.chain.take_over(NEXT_NONCE)
    await stored.lead()
    batch = await stored.commit(5)
    async with make_receiver(**QUIET, until=batch.last_id) as receiver:
        head = before.pid
        await taken(receiver, batch.last_id)
    # A receiver that is before both batches, and hears the older leader's frame late.
    start = stored.chain.mark(head)
    async with make_receiver(**QUIET, start=start, name="late") as receiver:
        reads = receiver.stats().reads
        await taken(receiver, batch.last_id)
        later = await stored.commit(5)
        await publish([*older, *stored.chain.frames(later)])
        await taken(receiver, later.last_id)
        stats = receiver.stats()
        assert (stats.reads, stats.dropped, stats.duplicates_dropped) == (reads, {}, len(older))


@pytest.mark.merge
async def test_frames_of_an_unknown_term_hold_up_no_live_one_while_the_database_is_silent(
    stored: StoredChain,
    publish: Publish,
    make_receiver: MakeReceiver,
    role_dsn: RoleDsn,
    chain_id: int,
) -> None:
    port = urlsplit(role_dsn(GAP_READER)).port or 0
    await stored.commit(5)
    async with Proxy(port, postgres_requests) as proxy:
        address = role_dsn(GAP_READER).replace(f":{port}/", f":{proxy.port}/")
        gaps = GapReader(GapReaderConfig(database=address, chain_id=chain_id))
        async with make_receiver(gaps=gaps) as receiver:
            await taken(receiver, stored.chain.mark().id)
            proxy.drops_requests = True
            async with deadline():
                for _ in range(10):
                    header, rows = invented(stored)
                    unknown = msgspec.structs.replace(header, publisher_nonce=b"of another story")
                    batch = await stored.commit(5)
                    await publish([signed(unknown, rows), *stored.chain.frames(batch)])
                    assert await taken(receiver, batch.last_id) == batch.events
            stats = receiver.stats()
            assert (stats.rows_live, stats.gaps, stats.dropped) == (50, 0, {}), "they wait"

            async def are_dropped() -> bool:
                batch = await stored.commit(1)
                await publish(stored.chain.frames(batch))
                await taken(receiver, batch.last_id)
                return receiver.stats().dropped == {"nonce": 10}

            proxy.drops_requests = False
            proxy.reset()
            await until(are_dropped)
