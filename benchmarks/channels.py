"""A channel of notifications for each chain, or one for all: side by side (decision 51).

`chainctl stack up --no-kafka`, `eval "$(chainctl stack env)"`, and `python -m benchmarks.channels
"$CHAINCTL_DATABASE"`, which takes two minutes. For another PostgreSQL, export before the three
`ORDERCHAIN_POSTGRES=FOLDER`, and a `CHAINCTL_STACK_DIR`. The leader sends the engine's statement.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from contextlib import AsyncExitStack
from itertools import cycle, product
from statistics import median
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from benchmarks.chains import connected
from benchmarks.processes import End, next_line, serve, stand_ready
from chain_kernel.clients.database_config import DatabaseConfig
from chain_kernel.frame import notice_channel
from chain_kernel.sql import load_sql
from local_stack.process import stat_fields

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from chain_kernel.clients.postgres import Connection

_MODULE: Final = "benchmarks.channels"
_CHAINS: Final = (1, 200)
_LISTENERS: Final = 4
"""Processes with one connection each, and a part of the chains; the only chain is of all."""
_REPEATS: Final = 3
_SECONDS: Final = 8.0
_STEP_SECONDS: Final = 0.004
_DUE: Final = 8
"""Chains at most that are due in one step: of 200, each is 10 times per second."""
_FRAME: Final = "x" * 240
"""As long as the frame of a heartbeat."""
_WAYS: Final[dict[str, Callable[[int], str]]] = {
    "per chain": notice_channel,
    "per database": lambda _: "orderchain",
}
_FIGURES: Final = ("us_leader", "us_server", "us_clients", "p50_ms", "p99_ms", "heard_share")
"""The last is 1 where all is heard, and 4 for the only chain, to which all four listen."""
_NOTIFY: Final = load_sql("sequencer", "queries.sql")["notify"]


async def listen(database: str, channels: list[str], chains: list[int]) -> dict[str, float]:
    """Hear what comes until a line says stop, and keep what is of `chains`."""
    own, waits = {*chains}, [0]

    def hear(_: object, __: int, ___: str, text: str) -> None:
        chain, sent_ns, _frame = text.split(" ", 2)
        if int(chain) in own:
            waits.append(time.monotonic_ns() - int(sent_ns))

    async with connected(DatabaseConfig.of(database)) as connection:
        for channel in channels:
            await connection.add_listener(channel, hear)
        backend = connection.get_server_pid()
        stand_ready(b"ready")
        server, client = _cpu_seconds(backend), time.process_time()
        await next_line()
        server, client = _cpu_seconds(backend) - server, time.process_time() - client
    p50, p99 = (float(each) / 1e6 for each in np.percentile(waits, (50, 99)))
    return {"server": server, "client": client, "p50": p50, "p99": p99, "heard": len(waits) - 1}


def _cpu_seconds(process_id: int) -> float:
    fields = stat_fields(process_id) or []
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


async def _notify(
    connection: Connection, channel_of: Callable[[int], str], chains: Sequence[int]
) -> int:
    """Notify as a leader of many chains does; return how often one was."""
    sent, turn = 0, cycle(chains)
    step = began = time.monotonic()
    while step < began + _SECONDS:
        due = [next(turn) for _ in range(min(_DUE, len(chains)))]
        notices = [f"{chain} {time.monotonic_ns()} {_FRAME}" for chain in due]
        await connection.execute(_NOTIFY, [channel_of(chain) for chain in due], notices)
        sent += len(due)
        step += _STEP_SECONDS
        await asyncio.sleep(max(0.0, step - time.monotonic()))
    return sent


async def _run(database: str, count: int, way: str) -> dict[str, float]:
    """Return microseconds of CPU per notification, and times until one is heard."""
    chains, channel_of = range(1, count + 1), _WAYS[way]
    async with AsyncExitStack() as stack, connected(DatabaseConfig.of(database)) as connection:
        ends = []
        for place in range(_LISTENERS):
            own = list(chains[place::_LISTENERS]) or [1]
            channels = sorted({channel_of(chain) for chain in own})
            given = {"database": database, "channels": channels, "chains": own}
            end = End(sys.executable, "-m", _MODULE, "listen", name="listen", given=given)
            ends.append(await stack.enter_async_context(end))
        for end in ends:
            await end.expect(b"ready")
        await connection.execute("SET synchronous_commit = off")
        backend = connection.get_server_pid()
        before = _cpu_seconds(backend)
        sent = await _notify(connection, channel_of, chains)
        leader = _cpu_seconds(backend) - before
        for end in ends:
            await end.tell(b"stop")
        found: list[dict[str, Any]] = [await end.result() for end in ends]
    return {
        "us_leader": leader / sent * 1e6,
        "us_server": sum(each["server"] for each in found) / sent * 1e6,
        "us_clients": sum(each["client"] for each in found) / sent * 1e6,
        "p50_ms": median(each["p50"] for each in found),
        "p99_ms": max(each["p99"] for each in found),
        "heard_share": sum(each["heard"] for each in found) / sent,
    }


async def main(database: str) -> None:
    """Print a table; the backend of the leader, those that listen, and their clients are apart."""
    async with connected(DatabaseConfig.of(database)) as connection:
        version = await connection.fetchval("SHOW server_version")
    arms = [*product(_CHAINS, _WAYS)]
    found: dict[tuple[int, str], list[dict[str, float]]] = {arm: [] for arm in arms}
    for arm in arms * _REPEATS:  # in turn
        found[arm].append(await _run(database, *arm))
    sys.stdout.write(f"|PostgreSQL {version}|{'|'.join(_FIGURES)}|\n")
    for (count, way), runs in found.items():
        figures = (f"{median(run[name] for run in runs):.2f}" for name in _FIGURES)
        sys.stdout.write(f"|{count} chains, a channel {way}|{'|'.join(figures)}|\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["listen"]:
        serve(listen)
    else:
        asyncio.run(main(*sys.argv[1:]))
