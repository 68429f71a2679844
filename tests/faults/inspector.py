"""Looks at a chain behind the engine's back, and holds it to the invariants of the design."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import asyncpg

from chain_kernel.frame import FrameHeader
from chain_kernel.model import Event
from chain_kernel.seal import PAGE_ROWS_MAX, SEAL_BYTES, event_pages, genesis_seal, next_seal
from tests.builders.created_chain import Chain

from .processes import Acked


async def inspect(chain: Chain, acked: Iterable[Acked] = ()) -> list[Event]:
    """Check every invariant that the database alone can break; return the rows."""
    # The server may still commit what a killed process sent: two looks would see two chains.
    async with chain.at_one_instant() as now:
        rows = await now.rows()
        await _check_links(now, len(rows))
        await _check_batches(now, rows)
        await _check_pages(now)
    _check_keys(rows)
    _check_acked(rows, acked)
    return rows


async def inspect_topic(chain: Chain, rows: list[Event]) -> None:
    """Check that the topic holds rows of the chain alone, and lacks none but those on record."""
    by_id = {row.id: row for row in rows}
    batches = await chain.fetch(
        "SELECT batch.*, parent.seal AS seal_before FROM chain_batch AS batch "
        "JOIN chain_batch AS parent ON parent.chain_id = batch.chain_id "
        "AND parent.last_id = batch.prev_last_id WHERE batch.chain_id = $1",
        chain.chain_id,
    )
    batch_of = {
        row_id: batch
        for batch in batches
        for row_id in range(batch["first_id"], batch["last_id"] + 1)
    }
    seen: set[int] = set()
    for header, events in await chain.frames():
        assert events == [by_id[event.id] for event in events], "S2: a frame that is not the rows"
        _check_frame(header, batch_of[header.first_id], batch_of[header.last_id])
        seen.update(event.id for event in events)
    skips = await chain.fetch(
        "SELECT after_id, until_id FROM chain_skip WHERE chain_id = $1", chain.chain_id
    )
    missing = [
        row.id
        for row in rows
        if row.id not in seen
        and not any(skip["after_id"] < row.id <= skip["until_id"] for skip in skips)
    ]
    assert not missing, f"neither published nor on record as skipped: {missing[:5]}"


async def _check_links(chain: Chain, count: int) -> None:
    """S1, by SQL: one root, ids above pids, each row's pid is the row before it."""
    broken = await chain.fetch(
        "SELECT id, pid, before FROM (SELECT id, pid, lag(id, 1, 0::bigint) OVER (ORDER BY id) "
        "AS before FROM chain_event WHERE chain_id = $1) AS rows "
        "WHERE pid <> before OR id <= pid",
        chain.chain_id,
    )
    assert not broken, f"S1: {broken[:5]}"
    distinct, roots = (
        await chain.fetch(
            "SELECT count(DISTINCT pid), count(*) FILTER (WHERE pid = 0) FROM chain_event "
            "WHERE chain_id = $1",
            chain.chain_id,
        )
    )[0]
    assert distinct == count, f"S1: {count} rows with {distinct} pids"
    assert roots == min(count, 1), "S1: not exactly one root"


async def _check_batches(chain: Chain, rows: list[Event]) -> None:
    """Heads, epochs (S7) and seals (S13), all recomputed from the rows."""
    batches = await chain.fetch(
        "SELECT *, (extract(epoch FROM committed_at) * 1000000)::bigint AS us FROM chain_batch "
        "WHERE chain_id = $1 ORDER BY last_id",
        chain.chain_id,
    )
    database_id = await chain.value("SELECT database_id FROM schema_version")
    genesis = batches[0]
    assert genesis["seal"] == genesis_seal(database_id, chain.chain_id)
    at = 0
    for parent, batch in pairwise(batches):
        assert batch["prev_last_id"] == parent["last_id"], "S1: batches do not link"
        assert batch["epoch"] >= parent["epoch"], "S7: the epoch falls along the chain"
        assert batch["us"] >= parent["us"], "committed_at falls along the chain"
        events = rows[at : at + batch["row_count"]]
        at += batch["row_count"]
        assert (events[0].id, events[-1].id) == (batch["first_id"], batch["last_id"])
        assert batch["seal"] == next_seal(
            parent["seal"],
            epoch=batch["epoch"],
            first_id=batch["first_id"],
            last_id=batch["last_id"],
            row_count=len(events),
            committed_at_us=batch["us"],
            pages=event_pages(events),
        ), f"the seal after {batch['last_id']} is not that of its rows"
    assert at == len(rows), "rows outside of every batch"
    (head,) = await chain.fetch("SELECT * FROM chain_head WHERE chain_id = $1", chain.chain_id)
    assert (head["last_id"], head["last_seal"]) == (batches[-1]["last_id"], batches[-1]["seal"])
    assert head["published_id"] in {batch["last_id"] for batch in batches}
    assert head["epoch"] >= batches[-1]["epoch"]


async def _check_pages(chain: Chain) -> None:
    """Every page is a slice of one batch; the CHECKs of the table hold its ends and lengths."""
    strange = await chain.fetch(
        "SELECT page.first_id, page.last_id, cardinality(page.ids) FROM chain_page AS page "
        "LEFT JOIN chain_batch AS batch ON batch.chain_id = page.chain_id "
        "AND batch.first_id <= page.first_id AND batch.last_id >= page.last_id "
        "WHERE page.chain_id = $1 AND (batch.chain_id IS NULL OR cardinality(page.ids) > $2)",
        chain.chain_id,
        PAGE_ROWS_MAX,
    )
    assert not strange, f"pages that are no slice of a batch: {strange[:5]}"


def _check_keys(rows: list[Event]) -> None:
    keys = {row.key for row in rows}
    assert len(keys) == len(rows), "S4: a key has two rows"


def _check_acked(rows: list[Event], acked: Iterable[Acked]) -> None:
    by_id = {row.id: row for row in rows}
    for order in acked:
        row = by_id.get(order.ack.id)
        assert row is not None, f"S3: acknowledged and gone: {order}"
        assert order.matches(row), f"S3: acknowledged {order}, but the row is {row}"


def _check_frame(header: FrameHeader, first: asyncpg.Record, last: asyncpg.Record) -> None:
    assert first["last_id"] == last["last_id"], "a frame over two batches"
    assert header.epoch == first["epoch"]
    assert header.publisher_epoch >= header.epoch
    assert header.seal_before == first["seal_before"]
    assert header.is_batch_end == (header.last_id == first["last_id"])
    assert header.seal_after == (first["seal"] if header.is_batch_end else bytes(SEAL_BYTES))
