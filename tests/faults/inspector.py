"""Shows the judge what is left on real servers: the chain, answers, effects, the topic."""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from chain_kernel.model import Event
from chain_kernel.seal import PAGE_ROWS_MAX
from tests.builders.created_chain import Chain
from tests.judge.judge import Judge
from tests.simulation.seen import rows_of

from .processes import Acked, history_of

_BATCHES = """
    SELECT *, (extract(epoch FROM committed_at) * 1000000)::bigint AS us
      FROM chain_batch WHERE chain_id = $1 ORDER BY last_id
"""


async def inspect(
    chain: Chain,
    acked: Iterable[Acked] = (),
    effects: Mapping[str, Sequence[Event]] | None = None,
) -> list[Event]:
    """Judge the chain, what was acknowledged and what took effect, by name; return the rows."""
    # The server may still commit what a killed process sent: two looks would see two chains.
    async with chain.at_one_instant() as now:
        rows = await now.rows()
        judge = await _judge_of(now, rows)
        await _check_pages(now)
    for order in acked:
        judge.saw("answered", order.key, order.payload, order.ack.id, order.ack.pid)
    history_of(chain.config).over({row.id for row in rows})
    for name, events in (effects or {}).items():
        judge.saw("effect", name, rows_of(events))
    return rows


async def inspect_topic(chain: Chain) -> None:
    """Judge the topic: rows of the chain alone, and none is missing but those on record."""
    rows = await chain.rows()
    judge = await _judge_of(chain, rows)
    for record in await chain.records():
        judge.saw("frame", record)
    await chain.frames()  # each is signed
    skips = await chain.fetch(
        "SELECT after_id, until_id FROM chain_skip WHERE chain_id = $1", chain.chain_id
    )
    last_id = rows[-1].id if rows else 0
    judge.saw("published", last_id, [tuple(skip) for skip in skips])


async def _judge_of(chain: Chain, rows: list[Event]) -> Judge:
    """Return a judge who has seen terms, batches and head as they are stored."""
    database_id = await chain.value("SELECT database_id FROM schema_version")
    judge = Judge(database_id.bytes, chain.chain_id)
    # Who asked is not known here: every order that is there may be.
    judge.saw("asked", [row.key for row in rows])
    terms = deque(
        await chain.fetch(
            "SELECT epoch, after_id FROM chain_term WHERE chain_id = $1 ORDER BY epoch",
            chain.chain_id,
        )
    )
    genesis, *batches = await chain.fetch(_BATCHES, chain.chain_id)
    assert genesis["seal"] == judge.fence.seal
    at = 0
    for batch in batches:
        while terms and terms[0]["epoch"] <= batch["epoch"]:
            judge.saw("term", *terms.popleft())
        of_batch = rows_of(rows[at : at + batch["row_count"]])
        at += batch["row_count"]
        judge.saw("batch", batch["epoch"], batch["us"], batch["seal"], of_batch)
        ends = (batch["prev_last_id"], batch["first_id"], batch["last_id"])
        assert ends == (of_batch[0][1], of_batch[0][0], of_batch[-1][0]), ends
    assert at == len(rows), "rows outside of every batch"
    for term in terms:
        judge.saw("term", *term)
    (head,) = await chain.fetch("SELECT * FROM chain_head WHERE chain_id = $1", chain.chain_id)
    judge.saw("stored_head", head["last_id"], head["last_seal"], head["epoch"])
    assert head["published_id"] in {batch["last_id"] for batch in (genesis, *batches)}
    judge.saw("durable", head["last_id"])
    return judge


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
