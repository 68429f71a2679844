"""What does mode 5 cost beside mode 3: messages a second, and rows written?

- mode 3: a relay. The acknowledgement is not written where the confirm overtakes it;
- mode 3, every acknowledgement written: the three writes of a plain outbox;
- mode 5: a sender of mode 5, and a callback service in a process and a database of its own, which
  returns the confirms over HTTP.

The same messages in the same transactions, on the same server with the same durability, the
consumer in a process of its own. Messages a second, from the first one stored until the last one is
consumed at its sender. The callback service's pauses are a tenth of a second here, not a second: a
rate is asked for, and a run is short. Rows written are PostgreSQL's own counts, inserts, updates
and deletes together: of `outbox_pending`, where a delivery stands until it is done, and of the
callback service's store.

    python -m benchmarks.outbox_delayed_check [--repeats 3 --messages 60000]
"""

from __future__ import annotations

import asyncio
import socket
import time
from contextlib import asynccontextmanager
from functools import partial
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import uvicorn

from benchmarks.arms import interleave, spread
from benchmarks.chains import connect_to
from benchmarks.children import start_worker
from benchmarks.committing import Figures, run, tell
from benchmarks.outbox_callback import CallbackSite, SenderAddress
from benchmarks.outbox_cycle import (
    END_SECONDS,
    consumer_process,
    cycle,
    first_message,
    store_all,
)
from benchmarks.outbox_site import (
    drop_database,
    drop_outbox,
    make_database,
    make_outbox,
    make_topics,
)
from outbox import RelayConfig
from outbox.callback.checked_sender import CheckedSender
from outbox.callback.config import CallbackConfig, CheckedConfig
from outbox.callback.sender_app import sender_app

if TYPE_CHECKING:
    import argparse
    from collections.abc import AsyncIterator

    from benchmarks.chains import Site
    from orderchain.clients.database_config import DatabaseConfig

TOKEN = "of-the-benchmark"  # noqa: S105 - of a server that lives for seconds

PAUSE_SECONDS = 0.1
"""How long a confirm may wait for others in the callback service, and how often that looks."""

_WRITTEN = (
    "SELECT sum(n_tup_ins + n_tup_upd + n_tup_del)::float8 "
    "FROM pg_stat_user_tables WHERE relname = $1"
)


async def rows_written(database: DatabaseConfig, table: str, messages: int) -> float:
    """Return the rows of `table` that were written, per message.

    Sessions report what they have done when they end, so all of them must have ended.
    """
    connection = await connect_to(database)
    others = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
    async with asyncio.timeout(END_SECONDS):
        while await connection.fetchval(others) > 1:  # noqa: ASYNC110 - of other processes
            await asyncio.sleep(0.05)
    written: float = await connection.fetchval(_WRITTEN, table)
    await connection.close()
    return written / messages


async def mode_3(
    site: Site,
    messages: int,
    written: dict[str, list[float]],
    name: str,
    **settings: Any,  # noqa: ANN401
) -> float:
    """Return messages per second of a relay."""
    place = await make_outbox(site)
    rate = await cycle(place, messages, **settings)
    written.setdefault(name, []).append(
        await rows_written(place.database, "outbox_pending", messages)
    )
    await drop_outbox(site, place)
    return rate


async def mode_5(site: Site, messages: int, written: dict[str, list[float]]) -> float:
    """Return messages per second of a sender of mode 5 with its callback service."""
    place = await make_outbox(site)
    topic = place.destination.topic
    checks = f"{topic}.checks"
    await make_topics(place.kafka, {checks: 1})
    store = await make_database(site, f"{topic}_callback")
    connection = await connect_to(store)
    async with connection.transaction():
        await connection.execute((files("outbox") / "sql" / "callback.sql").read_text())
    await connection.close()
    config = RelayConfig(database=place.database, kafka=place.kafka, name=f"{topic}.relay")
    sender = CheckedSender(config, CheckedConfig(sender="bench", check_topic=checks))
    callback = CallbackConfig(
        database=store,
        kafka=place.kafka,
        check_topic=checks,
        confirm_topics=(place.destination.confirm_topic,),
        name=f"{topic}.callback",
        return_seconds=PAUSE_SECONDS,
        round_seconds=PAUSE_SECONDS,
    )
    business = await connect_to(place.database)
    async with (
        consumer_process(place, "batched"),
        sender,
        served(sender) as url,
        callback_process(CallbackSite(callback, SenderAddress(url, TOKEN))),
    ):
        await first_message(sender, business)
        began = time.perf_counter()
        await store_all(business, messages, sender)
        async with asyncio.timeout(END_SECONDS):
            while sender.stats().consumed <= messages:  # noqa: ASYNC110 - a counter of the hot path
                await asyncio.sleep(0.002)
        seconds = time.perf_counter() - began
        if sender.stats().resent or sender.stats().dropped or sender.stats().unknown:
            raise RuntimeError(f"the run was not clean: {sender.stats()}")
    await business.close()
    for name, database, table in (
        ("mode 5", place.database, "outbox_pending"),
        ("mode 5, its callback service", store, "callback_delivery"),
    ):
        written.setdefault(name, []).append(await rows_written(database, table, messages))
    await drop_outbox(site, place)
    await drop_database(site, f"{topic}_callback")
    return messages / seconds


@asynccontextmanager
async def served(sender: CheckedSender) -> AsyncIterator[str]:
    """Serve the sender's endpoints in this process, and return their URL."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        app = sender_app(sender, TOKEN)
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off"))
        serving = asyncio.create_task(server.serve([listening]))
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        server.should_exit = True
        await serving


@asynccontextmanager
async def callback_process(site: CallbackSite) -> AsyncIterator[None]:
    """Run the callback service; returns once its store is there."""
    process = await start_worker("benchmarks.outbox_callback", site)
    try:
        if process.stdout is None or await process.stdout.readline() != b"ready\n":
            raise RuntimeError("the callback service did not start")
        yield
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def measure(site: Site, arguments: argparse.Namespace) -> Figures:
    """Measure each way in turn."""
    count = arguments.messages
    written: dict[str, list[float]] = {}
    every, plain = "mode 3, every ack written", "mode 3"
    figures = await interleave(
        {
            every: partial(mode_3, site, count, written, every, ack_linger_seconds=0.0),
            plain: partial(mode_3, site, count, written, plain),
            "mode 5": partial(mode_5, site, count, written),
        },
        arguments.repeats,
    )
    told = {name: spread(values[1:]) for name, values in written.items()}  # without the warm-up
    for name, values in told.items():
        print(f"{'rows written':12} {name:28} {values['median']:14,.4g} a message", flush=True)
    return {"rate": tell("rate", figures, every), "rows written a message": told}


if __name__ == "__main__":
    run("outbox_delayed_check", __doc__ or "", measure, repeats=3, messages=60_000)
