"""A stream that goes on at a real standby whose replay is paused: it waits, and repeats nothing."""

import asyncio
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import asyncpg
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

import orderchain.spark
from chain_kernel.sql import AUDITOR
from local_stack import PostgresServer
from local_stack.postgres import SUPERUSER
from tests.builders.standbys import standby_of
from tests.builders.stored_chain import StoredChain
from tests.deadlines import until

from .queries import is_late, run_to_end

Write = Callable[[DataFrame, int], None]

_POLLS = """
SELECT pid, query_start FROM pg_stat_activity
 WHERE application_name = 'chain_verifier' AND query LIKE '%ORDER BY h.chain_id%'
"""


async def paused_at(look: asyncpg.Connection, last_id: int) -> None:
    async def answers(question: str, expected: object) -> bool:
        return bool(await look.fetchval(question) == expected)

    await until(lambda: answers("SELECT last_id FROM chain_head WHERE chain_id = 7", last_id))
    await look.execute("SELECT pg_wal_replay_pause()")
    await until(lambda: answers("SELECT pg_get_wal_replay_pause_state()", "paused"))


async def polled(look: asyncpg.Connection, begin: Callable[[], StreamingQuery]) -> StreamingQuery:
    """Begin a stream, and return it once one session of it has asked for heads again and again."""
    query, seen = begin(), dict[int, set[datetime]]()

    async def has_polled() -> bool:
        nonlocal query
        for pid, start in await look.fetch(_POLLS):
            seen.setdefault(pid, set()).add(start)
        if is_late(query):
            query = begin()
        # One statement is parsed, bound and executed: three starts.
        return any(len(starts) > 9 for starts in seen.values())

    await until(has_polled)
    return query


async def test_stream_waits_for_a_standby_that_lags_with_the_checkpoint_as_it_is(
    spark: SparkSession, postgres_server: PostgresServer, database: str, database_name: str,
    server_folder: Path, tmp_path: Path,
) -> None:  # fmt: skip
    orderchain.spark.register(spark)
    ids: list[int] = []

    def keep(rows: DataFrame, batch: int) -> None:
        del batch
        ids.extend(row["id"] for row in rows.orderBy("id").collect())

    def fail(rows: DataFrame, batch: int) -> None:
        raise RuntimeError(f"batch {batch} of {rows.count()}")

    def writer(server: PostgresServer, write: Write) -> DataStreamWriter:
        url = server.dsn(AUDITOR, database_name)
        stream = spark.readStream.format("orderchain").option("url", url).load("7")
        made = stream.writeStream.foreachBatch(write).trigger(availableNow=True)
        return made.option("checkpointLocation", str(tmp_path / "checkpoint"))

    async def run(server: PostgresServer, write: Write) -> None:
        await asyncio.to_thread(run_to_end, writer(server, write))

    primary = await asyncpg.connect(database)
    stored = await StoredChain.create(primary, 7)
    await stored.commit(10)
    standby = await asyncio.to_thread(standby_of, postgres_server, server_folder / "standby")
    with standby:
        look = await asyncpg.connect(standby.dsn(SUPERUSER, database_name))
        await paused_at(look, stored.chain.ids[-1])
        await stored.commit(10)
        with pytest.raises(PySparkException, match="batch 0 of 20"):
            await run(postgres_server, fail)

        # The batch that failed is planned again, at a server that has only half of it.
        query = await polled(look, writer(standby, keep).start)
        await look.execute("SELECT pg_wal_replay_resume()")
        await asyncio.to_thread(query.awaitTermination)
        assert ids == stored.chain.ids

        # What is committed is not read again at a server that has less.
        await paused_at(look, stored.chain.ids[-1])
        await stored.commit(10)
        await run(postgres_server, keep)
        await run(standby, keep)
        assert ids == stored.chain.ids
        await look.execute("SELECT pg_wal_replay_resume()")
        await stored.commit(10)
        await paused_at(look, stored.chain.ids[-1])
        await run(standby, keep)
        assert ids == stored.chain.ids
        await look.close()
    await primary.close()
