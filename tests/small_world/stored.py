"""What is stored, as values: a chain is its log. The models of the judge say whether it may be so.

A log holds take-overs and batches in their order: of a take-over the epoch and the server, of a
batch the seal, which is the hash of all before it.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import UUID

from chain_kernel.frame import HEADER_BYTES
from chain_kernel.limits import FRAME_BYTES_MAX
from chain_kernel.model import ServerIdentity, Term
from chain_kernel.seal import genesis_seal
from chain_kernel.testing.memory_store import CommittedChain, MemoryDatabase
from sequencer.publisher import batch_frames
from tests.judge.fence import Fence
from tests.judge.publish import Publish

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from chain_kernel.model import Event
    from chain_kernel.seal import Batch
    from tests.judge.chain_bytes import Row

Started = tuple[int, str]
"""The epoch of a term, and the server where it began."""

Log = tuple[Started | bytes, ...]

CHAIN_ID: Final = 1
DATABASE_ID: Final = UUID(int=1)
GENESIS: Final = genesis_seal(DATABASE_ID, CHAIN_ID)
WINDOW_ROWS: Final = 4
"""How many rows' keys a leader knows, which are all."""

PAYLOAD: Final = b"order"
KEYS: Final = (("a#1",), ("b", "a#2"), ("a#1",))
"""The keys of each call, in the order in which calls are made: one order is repeated."""

ONE_ROW_BYTES: Final = HEADER_BYTES + 30
"""A frame of this size has room for one row."""

BATCHES: Final[dict[bytes, Batch]] = {}
"""All that was ever assembled, by seals."""


class Call(NamedTuple):
    """A call: `status` is empty before it, then open; done, not done, too old, or in doubt."""

    status: str = ""
    places: tuple[tuple[int, int], ...] = ()
    """Id and pid of each order, once it is done."""


Calls = tuple[Call, ...]


@cache
def chain_of(log: Log) -> CommittedChain:
    """Return the chain, which is changed no more."""
    chain = CommittedChain(CHAIN_ID, DATABASE_ID)
    for entry in log:
        if isinstance(entry, bytes):
            chain.batches.append(BATCHES[entry])
        else:
            chain.begin_term("{1}{0:>15}".format(*entry).encode())
    chain.replicated_id = chain.last_id
    return chain


def database_of(server: str, log: Log) -> MemoryDatabase:
    database = MemoryDatabase(DATABASE_ID.int)
    database.server = ServerIdentity(1, "AB".index(server) + 1)
    database.chains[CHAIN_ID] = chain_of(log)
    return database


def last_term(log: Log) -> Started:
    return next((entry for entry in reversed(log) if isinstance(entry, tuple)), (0, ""))


@cache
def term_of(log: Log) -> Term:
    """Return the term that begins at the end of `log`."""
    chain, (epoch, server) = chain_of(log), last_term(log)
    return Term(
        chain_id=CHAIN_ID,
        database_id=DATABASE_ID,
        epoch=epoch,
        nonce=chain.nonce,
        frame_key=chain.terms[0].frame_key,
        last_id=chain.last_id,
        last_seal=chain.last_seal,
        last_committed_at_us=0,
        published_id=0,
        topic="orders.1",
        partition=0,
        key_salt=1,
        partition_ids=chain.partition_ids,
        server=database_of(server, log).server,
    )


@cache
def frames_of(seal: bytes, base: Log) -> list[bytes]:
    """Return the frames of a batch, whole and cut, by the term that began at the end of `base`."""
    batch, term = BATCHES[seal], term_of(base)
    whole, cut = (batch_frames(batch, term, size) for size in (FRAME_BYTES_MAX, ONE_ROW_BYTES))
    return whole + (cut if len(cut) > 1 else [])


def done_now(work: Coroutine[Any, Any, Any]) -> Any:
    """Return the result of a coroutine that waits for nothing but its turn."""
    while True:
        try:
            work.send(None)
        except StopIteration as end:
            return end.value


# -- what the models say --------------------------------------------------------------------------


def seen_row(row: Event) -> Row:
    return row.id, row.pid, row.key, row.event_time_ns, row.payload


def seen_by(model: Any, log: Log) -> Any:
    """Return `model`, which has seen the batches of `log`."""
    for batch in chain_of(log).batches:
        rows = list(map(seen_row, batch.events))
        model.batch(batch.epoch, batch.committed_at_us, batch.seal, rows)
    return model


@cache
def judge_calls(log: Log, replicated_id: int, calls: Calls) -> None:
    """Judge the chain on the primary, and all that callers have heard. Raises Diverged."""
    fence = Fence(GENESIS)
    asked = [(keys, call) for keys, call in zip(KEYS, calls, strict=False) if call.status]
    for keys, _ in asked:
        fence.asked(keys)
    for entry in log:
        if isinstance(entry, tuple):
            fence.term(entry[0], fence.head)
        else:
            batch = BATCHES[entry]
            rows = list(map(seen_row, batch.events))
            fence.batch(batch.epoch, batch.committed_at_us, batch.seal, rows)
    fence.durable(replicated_id)
    for keys, call in asked:
        if call.status in ("in doubt", "too old"):
            fence.unheard(keys)
        if call.status == "too old":
            fence.too_old(keys[0], 1, 2, WINDOW_ROWS)
        for key, place in zip(keys, call.places, strict=False):
            fence.answered(key, PAYLOAD, *place)
    for keys, call in asked:
        if call.status == "not done":
            fence.not_done(keys, "refused")


@cache
def judge_frame(log: Log, record: bytes) -> None:
    """Judge what a leader publishes. Raises Diverged."""
    seen_by(Publish(GENESIS), log).frame(record)
