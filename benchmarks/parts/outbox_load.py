"""The outbox under a steady load, and mode 5 beside mode 3."""

from __future__ import annotations

import asyncio
import socket
import time
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import uvicorn
from msgspec import Struct

from benchmarks.chains import Site, connected
from benchmarks.parts.outbox import (
    END_SECONDS,
    PAYLOAD,
    batched,
    consuming,
    cycle,
    database_of,
    first_message,
    make_topics,
    messages,
    outbox_of,
    rate_through,
    store,
    timed,
)
from benchmarks.processes import call, say, serve
from benchmarks.spreads import compared, histogram_of, interleave, merged, spread
from orderchain.monitoring import calm_collector
from outbox import Relay
from outbox.callback.callback_service import CallbackIntake, CallbackService
from outbox.callback.calls import HttpSenderCalls, sender_app
from outbox.callback.checked_sender import CheckedSender
from outbox.callback.config import CallbackConfig, CheckedConfig

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from benchmarks.load import Figures
    from orderchain.clients.database_config import DatabaseConfig
    from orderchain.clients.postgres import Connection

# -- outbox_latency: how late does a message come: from its commit to its handler? -----------------

_CONNECTIONS: Final = 16
"""Those of the business: one alone manages about 400 transactions per second, each flushed."""

_MAKE_LOG: Final = (
    "ALTER SYSTEM SET checkpoint_timeout = '1h'",
    "SELECT pg_reload_conf()",
    "CREATE TABLE filling (content text)",
    "INSERT INTO filling SELECT repeat('x', 1000) FROM generate_series(1, 250000)",
    "DROP TABLE filling",
)
"""Rows of a thousand bytes make log files to reuse."""

_WAYS: Final = {
    "handed over": (True, 1),
    "woken": (False, 1),
    "handed over, four a transaction": (True, 4),
    "woken, four a transaction": (False, 4),
}
"""Whether messages are handed over to the relay, and how many are in a transaction."""


class _Delays(NamedTuple):
    """The delays of one round, in nanoseconds."""

    from_commit: list[int]
    from_begin: list[int]
    rate: float
    """Messages per second that were really stored."""


async def outbox_latency(
    site: Site, *, repeats: int, seconds: int, rate: int, warm: int
) -> Figures:
    """Measure every way in turn."""
    found: dict[str, list[_Delays]] = {name: [] for name in _WAYS}
    async with connected(site.admin) as admin:
        for statement in _MAKE_LOG:
            await admin.execute(statement)
        for number in range(repeats + 1):
            for name, way in _WAYS.items():
                # The dirty pages of one arm are written, and its log files are free for the next.
                await admin.execute("CHECKPOINT")
                found[name].append(await _round(site, seconds if number else warm, rate, *way))
                print(f"{name}: {found[name][-1].rate:,.0f}/s stored", flush=True)
    return {
        name: {
            "commit to handler, ms": _percentiles([each.from_commit for each in rounds[1:]]),
            "begin to handler, ms": _percentiles([each.from_begin for each in rounds[1:]]),
            "stored a second": spread([each.rate for each in rounds[1:]]),
        }
        for name, rounds in found.items()
    }


async def _round(site: Site, seconds: int, rate: int, hands_over: bool, together: int) -> _Delays:
    """Return the delays of `seconds` seconds of load, `rate` messages in each."""
    count = seconds * rate // together * together
    firsts = iter(range(0, count, together))
    begun, committed, handled = ([0] * count for _ in range(3))
    async with AsyncExitStack() as stack:
        place = await stack.enter_async_context(outbox_of(site))
        business = [
            await stack.enter_async_context(connected(place.database)) for _ in range(_CONNECTIONS)
        ]
        consumer = await stack.enter_async_context(consuming(place, timed))
        relay = await stack.enter_async_context(Relay(place.relay_config()))

        async def collect() -> None:
            for _ in range(count):
                number, at = (await consumer.line()).split()
                handled[int(number)] = int(at)

        async def work(connection: Connection) -> None:
            for first in firsts:
                await asyncio.sleep(max(began + first / rate - time.monotonic(), 0))
                numbers = slice(first, first + together)
                begun[numbers] = [time.monotonic_ns()] * together
                numbered = (n.to_bytes(8, "big") + PAYLOAD for n in range(first, first + together))
                await store(connection, messages(numbered), relay if hands_over else None)
                committed[numbers] = [time.monotonic_ns()] * together

        await first_message(relay, business[0])
        await consumer.line()  # its time means nothing
        collecting = asyncio.create_task(collect())
        began = time.monotonic()
        await asyncio.gather(*(work(connection) for connection in business))
        reached = count / (time.monotonic() - began)
        async with asyncio.timeout(END_SECONDS):
            await collecting
    return _Delays(
        # The handler may run before the business hears of its commit: that counts as at once.
        [max(at - commit, 0) for at, commit in zip(handled, committed, strict=True)],
        [at - begin for at, begin in zip(handled, begun, strict=True)],
        reached,
    )


def _percentiles(rounds: list[list[int]]) -> Figures:
    histograms = [histogram_of(each) for each in rounds]
    each_p99 = spread([merged([one])["p99"] for one in histograms])
    return merged(histograms) | {"p99 of a round": each_p99}


# -- outbox_delayed_check: what does mode 5 cost beside mode 3: messages a second, rows written? ---

_TOKEN: Final = "of-the-benchmark"  # noqa: S105 - of a server that lives for seconds

_PAUSE_SECONDS: Final = 0.1
"""How long a confirm may wait for others in the callback service, and how often that looks."""

_OTHERS: Final = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
_WRITTEN: Final = """
SELECT sum(n_tup_ins + n_tup_upd + n_tup_del)::float8 FROM pg_stat_user_tables WHERE relname = $1
"""


class SenderAddress(Struct, frozen=True):
    """How the sender is reached."""

    callback_url: str
    call_token: str


async def outbox_delayed_check(site: Site, *, repeats: int, messages: int) -> Figures:
    """Measure each way in turn."""
    written: dict[str, list[float]] = {}
    every, plain = "mode 3, every ack written", "mode 3"
    figures = await interleave(
        {
            every: partial(_mode_3, site, messages, written, every, ack_linger_seconds=0.0),
            plain: partial(_mode_3, site, messages, written, plain),
            "mode 5": partial(_mode_5, site, messages, written),
        },
        repeats,
    )
    without_warm_up = {name: spread(values[1:]) for name, values in written.items()}
    return {"rate": compared(figures, ratio=every), "rows written a message": without_warm_up}


async def _rows_written(database: DatabaseConfig, table: str, count: int) -> float:
    """Return the rows of `table` that were written, per message.

    Sessions report what they have done when they end, so all of them must have ended.
    """
    async with connected(database) as connection:
        async with asyncio.timeout(END_SECONDS):
            while await connection.fetchval(_OTHERS) > 1:  # noqa: ASYNC110 - of other processes
                await asyncio.sleep(0.05)
        written: float = await connection.fetchval(_WRITTEN, table)
    return written / count


async def _mode_3(
    site: Site,
    count: int,
    written: dict[str, list[float]],
    name: str,
    **settings: Any,  # noqa: ANN401 - of the relay
) -> float:
    async with outbox_of(site) as place:
        rate = await cycle(place, count, **settings)
        rows = await _rows_written(place.database, "outbox_pending", count)
        written.setdefault(name, []).append(rows)
    return rate


async def _mode_5(site: Site, count: int, written: dict[str, list[float]]) -> float:
    async with AsyncExitStack() as stack:
        place = await stack.enter_async_context(outbox_of(site))
        topic = place.destination.topic
        checks = f"{topic}.checks"
        await make_topics(place.kafka, checks)
        callback_store = await stack.enter_async_context(
            database_of(site, f"{topic}_callback", "callback")
        )
        check = CheckedConfig(sender="bench", check_topic=checks)
        sender = CheckedSender(place.relay_config(), check)
        callback = CallbackConfig(
            database=callback_store,
            kafka=place.kafka,
            check_topic=checks,
            confirm_topics=(place.destination.confirm_topic,),
            name=f"{topic}.callback",
            return_seconds=_PAUSE_SECONDS,
            round_seconds=_PAUSE_SECONDS,
        )
        async with (
            connected(place.database) as business,
            consuming(place, batched),
            sender,
            _served(sender) as url,
            call(serving, keeps_errors=False, config=callback, url=url) as service,
        ):
            await service.expect(b"ready")
            rate = await rate_through(sender, business, count)
            if sender.stats().resent or sender.stats().dropped or sender.stats().unknown:
                raise RuntimeError(f"the run was not clean: {sender.stats()}")
        for name, database, table in (
            ("mode 5", place.database, "outbox_pending"),
            ("mode 5, its callback service", callback_store, "callback_delivery"),
        ):
            rows = await _rows_written(database, table, count)
            written.setdefault(name, []).append(rows)
    return rate


@asynccontextmanager
async def _served(sender: CheckedSender) -> AsyncIterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        app = sender_app(sender, _TOKEN)
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off"))
        serving = asyncio.create_task(server.serve([listening]))
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        server.should_exit = True
        await serving


async def serving(config: CallbackConfig, url: str) -> None:
    """Be the callback service of mode 5: take records in, and return confirms."""
    calm_collector()
    sender = SenderAddress(url, _TOKEN)
    service = CallbackService(config, HttpSenderCalls(lambda _: sender, config.call_seconds))
    await service.check()
    say(b"ready")
    await asyncio.gather(CallbackIntake(config, service).run(), service.run())


if __name__ == "__main__":
    serve(serving)
