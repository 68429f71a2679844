"""Shows the judge what is left on real servers: the chain, answers, effects, the topic."""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from math import inf
from operator import itemgetter

import asyncpg

from chain_kernel.model import Event
from chain_kernel.seal import PAGE_ROWS_MAX
from tests.builders.created_chain import Chain
from tests.judge.judge import Judge
from tests.simulation.seen import rows_of

from .seen import Observation, Seen, seen_of

_BATCHES = """
    SELECT *, (extract(epoch FROM committed_at) * 1000000)::bigint AS us
      FROM chain_batch WHERE chain_id = $1 AND last_id >= $2 ORDER BY last_id
"""
_TERMS = """
    SELECT epoch, after_id, timeline FROM chain_term WHERE chain_id = $1 AND epoch >= $2
     ORDER BY epoch
"""


class Moment:
    """A clock that shows where the judge's story has come to."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


async def inspect(
    chain: Chain,
    effects: Mapping[str, Sequence[Event]] | None = None,
    *,
    seen: Seen | None = None,
    judge: Judge | None = None,
) -> list[Event]:
    """Judge the chain, what callers saw of it, and what took effect, by name; return the rows.

    `seen` is by default all that was seen of the chain; of an empty one nothing is judged. A
    `judge` of a chain that is judged in parts goes on where it is, and `seen` keeps what is later.
    """
    seen = seen_of(chain.config) if seen is None else seen
    is_part = judge is not None
    judge = judge or await judge_of(chain)
    before = len(seen.events)
    # The server may still commit what a killed process sent: two looks would see two chains.
    async with chain.at_one_instant() as now:
        rows = await now.rows(judge.fence.head)
        # What was answered later is not in these rows; what was asked for may be.
        later = [event for event in seen.events[before:] if event[1] == "asked"]
        events = [*seen.events[:before], *later]
        if is_part:
            seen.events[:] = [event for event in seen.events[before:] if event[1] != "asked"]
        await _show(now, judge, rows, events)
        await _check_pages(now)
    for name, applied in (effects or {}).items():
        judge.saw("effect", name, rows_of(applied))
    return rows


async def inspect_topic(chain: Chain, *, keeps_all: bool = True) -> None:
    """Judge the topic: rows of the chain alone, and none is missing but those on record.

    `keeps_all`: it was never made again.
    """
    rows = await chain.rows()
    judge = await judge_of(chain)
    await _show(chain, judge, rows, [])
    for record in await chain.records():
        judge.saw("frame", record)
    await chain.frames()  # each is signed
    skips = await chain.fetch(
        "SELECT after_id, until_id FROM chain_skip WHERE chain_id = $1", chain.chain_id
    )
    last_id = rows[-1].id if rows and keeps_all else 0
    judge.saw("published", last_id, [tuple(skip) for skip in skips])


async def judge_of(chain: Chain) -> Judge:
    """Return a judge who has seen nothing yet."""
    database_id = await chain.value("SELECT database_id FROM schema_version")
    return Judge(database_id.bytes, chain.chain_id, clock=Moment())


async def _show(
    chain: Chain, judge: Judge, rows: list[Event], events: Sequence[Observation]
) -> None:
    """Show what is stored after what the judge has seen, each batch at its time among `events`."""
    clock = judge.history.clock
    assert isinstance(clock, Moment)
    waiting = deque(sorted(events, key=itemgetter(0)))

    def see(until: float) -> None:
        while waiting and waiting[0][0] < until:
            clock.now, what, values = waiting.popleft()
            judge.saw(what, *values)

    if not events:
        judge.saw("asked", [row.key for row in rows])
    (head,) = await chain.fetch("SELECT * FROM chain_head WHERE chain_id = $1", chain.chain_id)
    terms = deque(await chain.fetch(_TERMS, chain.chain_id, judge.fence.epoch))
    judge.saw("durable", _durable(terms, head["last_id"]))
    if judge.fence.epoch:
        terms.popleft()
    before, *batches = await chain.fetch(_BATCHES, chain.chain_id, judge.fence.head)
    assert (before["last_id"], before["seal"]) == (judge.fence.head, judge.fence.seal)
    at = 0
    for batch in batches:
        see(batch["us"] / 1e6)
        while terms and terms[0]["epoch"] <= batch["epoch"]:
            judge.saw("term", terms[0]["epoch"], terms[0]["after_id"])
            judge.saw("durable", _durable(terms, head["last_id"]))
            terms.popleft()
        of_batch = rows_of(rows[at : at + batch["row_count"]])
        at += batch["row_count"]
        judge.saw("batch", batch["epoch"], batch["us"], batch["seal"], of_batch)
        ends = (batch["prev_last_id"], batch["first_id"], batch["last_id"])
        assert ends == (of_batch[0][1], of_batch[0][0], of_batch[-1][0]), ends
    assert at == len(rows), "rows outside of every batch"
    see(inf)
    for term in terms:
        judge.saw("term", term["epoch"], term["after_id"])
    judge.saw("over")
    judge.saw("stored_head", head["last_id"], head["last_seal"], head["epoch"])
    is_end = "SELECT count(*) FROM chain_batch WHERE chain_id = $1 AND last_id = $2"
    assert await chain.value(is_end, chain.chain_id, head["published_id"]) == 1


def _durable(terms: Iterable[asyncpg.Record], last_id: int) -> int:
    """Return how far the standby had come that is promoted next, or what is there in the end."""
    promoted = (
        term["after_id"]
        for before, term in pairwise(terms)
        if term["timeline"] > before["timeline"]
    )
    return next(promoted, last_id)


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
