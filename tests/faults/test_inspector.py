"""The inspector finds what it is there to find: each invariant broken on purpose, one at a time."""

import asyncio

import pytest

from sequencer import Ack, Order, open_sequencer
from tests.builders.created_chain import Chain
from tests.builders.topics import send_records
from tests.judge.rules import Diverged

from .conftest import MakeChain
from .inspector import inspect, inspect_topic, judge_of
from .seen import Asked, Seen, seen_of

JOIN_PAGES = """
    UPDATE chain_page
       SET first_id = whole.ids[1], ids = whole.ids, pids = whole.pids, keys = whole.keys,
           event_times_ns = whole.times_ns, payloads = whole.payloads
      FROM (SELECT array_agg(id ORDER BY id) AS ids, array_agg(pid ORDER BY id) AS pids,
                   array_agg(key ORDER BY id) AS keys, array_agg(payload ORDER BY id) AS payloads,
                   array_agg(event_time_ns ORDER BY id) AS times_ns
              FROM chain_event) AS whole
     WHERE last_id = 20;
    DELETE FROM chain_page WHERE last_id = 10;
"""
"""Every row is what it was, and so is every seal."""

BREAKS = {
    "a row is gone": "DELETE FROM chain_event WHERE id = 5",
    "the last row is gone": "DELETE FROM chain_event WHERE id = 20",
    "a payload is changed": "UPDATE chain_event SET payload = 'other' WHERE id = 5",
    "a key is changed": "UPDATE chain_event SET key = 'other' WHERE id = 5",
    "a time is changed": "UPDATE chain_event SET event_time_ns = 7 WHERE id = 5",
    "a pid is changed": "UPDATE chain_event SET pid = 3 WHERE id = 5",
    "two rows share a key": "UPDATE chain_event SET key = 'k0' WHERE id = 5",
    "a batch names another epoch": "UPDATE chain_batch SET epoch = 9 WHERE last_id = 10",
    "a batch counts wrongly": "UPDATE chain_batch SET row_count = 9 WHERE last_id = 10",
    "a seal is changed": "UPDATE chain_batch SET seal = sha256('x') WHERE last_id = 10",
    "a row is added": "INSERT INTO chain_event VALUES (1, 21, 20, 'k21', 0, '')",
    "two rows are swapped": "UPDATE chain_event SET payload = "
    "CASE id WHEN 5 THEN 'x5'::bytea ELSE 'x4'::bytea END WHERE id IN (5, 6)",
    "a page holds two batches": JOIN_PAGES,
    "the head is behind": "UPDATE chain_head SET last_id = 10, published_id = 10",
}


async def test_chain_that_grows_is_seen_at_one_instant(make_chain: MakeChain) -> None:
    """The server may go on with a commit of a process that was killed."""
    chain = await make_chain()
    async with open_sequencer(chain.config) as sequencer:

        async def grow() -> None:
            while True:
                await sequencer.submit_many([Order(f"k{sequencer.stats().orders}", b"")])

        growing = asyncio.create_task(grow())
        seen = [len(await inspect(chain)) for _ in range(10)]
        growing.cancel()
    assert seen == sorted(seen)
    assert seen[-1] > seen[0]


async def make_twenty_rows(make_chain: MakeChain) -> Chain:
    chain = await make_chain()
    async with open_sequencer(chain.config) as sequencer:
        for start in (0, 10):
            orders = [Order(f"k{n}", b"x%d" % n, n) for n in range(start, start + 10)]
            await sequencer.submit_many(orders)
    return chain


async def test_inspector_passes_a_chain_that_is_whole(make_chain: MakeChain) -> None:
    chain = await make_twenty_rows(make_chain)
    rows = await inspect(chain)
    await inspect_topic(chain)
    assert len(rows) == 20


async def test_chain_is_judged_in_parts_of_which_old_ones_are_forgotten(
    make_chain: MakeChain,
) -> None:
    chain = await make_chain()
    judge, ends = await judge_of(chain), [0, 0]
    async with open_sequencer(chain.config) as sequencer:
        for start in range(0, 50, 10):
            orders = [Order(f"k{n}", b"") for n in range(start, start + 10)]
            await sequencer.submit_many(orders)
            rows = await inspect(chain, {"journal": await chain.rows(start)}, judge=judge)
            assert [row.key for row in rows] == [order.key for order in orders]
            ends.append(rows[-1].id)
            judge.saw("forget", ends[-3])
    assert len(judge.fence.rows) == 20
    seen_of(chain.config).answered(Asked("k35", b""), Ack(35, 34))
    with pytest.raises(Diverged, match="G4 one place a key"):
        await inspect(chain, judge=judge)


@pytest.mark.guarantee("G1", "G13")
@pytest.mark.parametrize("what", BREAKS)
async def test_inspector_finds_tampering(make_chain: MakeChain, what: str) -> None:
    chain = await make_twenty_rows(make_chain)
    await chain.tamper(BREAKS[what])
    with pytest.raises(AssertionError):
        await inspect(chain)


NOT_DONE = ("not_done", (["k3"], "RetryError('it is not')"))


@pytest.mark.guarantee("G3", "G4", "G9")
@pytest.mark.parametrize(
    ("rule", "lie", "is_early"),
    [
        ("G4 one place a key", ("answered", ("k3", b"x3", 5, 4)), False),
        ("G3 acknowledged before committed", ("answered", ("other", b"x3", 4, 3)), False),
        ("G3 acknowledged before committed", ("answered", ("k3", b"x3", 4, 3)), True),
        ("G9 reported that it was not", NOT_DONE, False),
        ("G9 said not to be", NOT_DONE, True),
    ],
)
async def test_inspector_finds_an_answer_that_is_wrong(
    make_chain: MakeChain, rule: str, lie: tuple[str, tuple[object, ...]], *, is_early: bool
) -> None:
    """`is_early`: it came right after the question, and not after the commit."""
    chain = await make_twenty_rows(make_chain)
    events, seen = seen_of(chain.config).events, Seen()
    asked_at = next(at for at, what, values in events if what == "asked" and "k3" in values[0])
    for at, what, values in events:
        is_answer = what == "answered" and values[0] == "k3"
        seen.events.append(
            (asked_at if is_early else at, *lie) if is_answer else (at, what, values)
        )
    with pytest.raises(Diverged, match=rule):
        await inspect(chain, seen=seen)


async def test_inspector_finds_a_foreign_frame(make_chain: MakeChain) -> None:
    chain = await make_twenty_rows(make_chain)
    await inspect(chain)
    record = (await chain.records())[-1]
    foreign = record[:-1] + bytes([record[-1] ^ 1])
    await send_records(chain.config.kafka, chain.topic, foreign)
    with pytest.raises(AssertionError, match="G2"):
        await inspect_topic(chain)
