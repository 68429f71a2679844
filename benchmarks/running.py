"""Runs one load through one rival, in processes of its own, and proves it whole."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from benchmarks.load import Load, Produced, Received, Venue
from benchmarks.rivals import rival_of
from benchmarks.rivals.rival import NotWhole
from benchmarks.server_load import ServerLoad

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from benchmarks.chains import Site

_T = TypeVar("_T")

RUN_SECONDS_MAX = 900.0
"""Longer than the slowest arm; a run that hangs is ended and has no figure."""

_ROOT = Path(__file__).parent.parent


class RunFailed(Exception):
    """An end of a run ended without its figures; the text is the last line that it wrote."""


async def run_load(site: Site, load: Load) -> dict[str, float]:
    """Run `load` and return its figures. Raises RunFailed, NotWhole, TimeoutError."""
    rival = rival_of(load.rival)
    place = await rival.prepare(site, load)
    venue = Venue(site=site, load=load, place=place)
    try:
        async with asyncio.timeout(RUN_SECONDS_MAX):
            figures = await _run(venue)
            stored = await rival.stored(venue)
        if stored.rows != load.all_orders:
            raise NotWhole(f"{stored.rows} orders are stored of {load.all_orders}")
        return figures
    finally:
        await rival.clean_up(venue)


async def _run(venue: Venue) -> dict[str, float]:
    """Return the figures of the timed part."""
    load = venue.load
    has_receiver = load.stage == "deliver"
    async with _ends(venue, has_receiver=has_receiver) as (producing, receiving):
        if receiving is not None:
            await receiving.expect(b"listening")
        await producing.start(venue)
        await producing.expect(b"ready")
        if receiving is not None:
            await receiving.expect(b"ready")
        servers = await ServerLoad.now(venue)
        await producing.tell(b"go\n")
        produced = await producing.result(Produced)
        received = None if receiving is None else await receiving.result(Received)
        used = (await ServerLoad.now(venue)).since(servers)
    return {**_figures(load, produced, received), **used}


def _figures(load: Load, produced: Produced, received: Received | None) -> dict[str, float]:
    def rate(until_ns: int) -> float:
        return load.orders / (until_ns - produced.began_ns) * 1e9

    figures = {
        "orders": float(load.orders),
        "persisted_per_second": rate(produced.persisted_ns),
        "producer_cpu_seconds": produced.cpu_seconds,
        "producer_memory_mib": produced.memory_mib,
    }
    if load.stage != "persist":
        figures["published_per_second"] = rate(produced.published_ns)
    if received is not None:
        if received.rows != load.all_orders:
            raise NotWhole(f"{received.rows} orders were handed on of {load.all_orders}")
        # Never faster than durable: a receiver may be ahead of the sender's own word.
        figures |= {
            "delivered_per_second": rate(max(received.ended_ns, produced.persisted_ns)),
            "receiver_cpu_seconds": received.cpu_seconds,
            "receiver_memory_mib": received.memory_mib,
            **received.notes,
        }
    return figures


class _End:
    """The process of one end."""

    def __init__(self, role: str) -> None:
        self._role = role
        self._process: asyncio.subprocess.Process | None = None

    async def start(self, venue: Venue) -> None:
        # A session of its own: Ctrl-C is for the benchmark, which then ends both ends.
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "benchmarks.worker", self._role),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
            cwd=_ROOT,
        )
        await self.tell(msgspec.json.encode(venue) + b"\n")

    async def tell(self, line: bytes) -> None:
        stdin = self._running().stdin
        if stdin is not None:
            stdin.write(line)
            await stdin.drain()

    async def expect(self, word: bytes) -> None:
        found = await self._line()
        if found != word:
            raise RunFailed(f"{self._role}: said {found.decode()!r}, expected {word.decode()!r}")

    async def result(self, kind: type[_T]) -> _T:
        return msgspec.json.decode(await self._line(), type=kind)

    async def _line(self) -> bytes:
        process = self._running()
        line = await process.stdout.readline() if process.stdout else b""
        if line:
            return line.rstrip(b"\n")
        said = await process.stderr.read() if process.stderr else b""
        last = said.decode(errors="replace").strip().rpartition("\n")[2]
        raise RunFailed(f"{self._role}: {last or 'ended without a word'}")

    def _running(self) -> asyncio.subprocess.Process:
        if self._process is None:
            raise RunFailed(f"{self._role}: not started")
        return self._process

    async def end(self) -> None:
        process = self._process
        if process is not None and process.returncode is None:
            try:
                async with asyncio.timeout(5):  # it has told its figures and is closing
                    await process.wait()
            except TimeoutError:
                os.kill(process.pid, signal.SIGKILL)
                await process.wait()


@asynccontextmanager
async def _ends(venue: Venue, *, has_receiver: bool) -> AsyncIterator[tuple[_End, _End | None]]:
    """Start the receiving end, if there is one; leave no process behind."""
    producing, receiving = _End("produce"), _End("receive") if has_receiver else None
    try:
        if receiving is not None:
            await receiving.start(venue)
        yield producing, receiving
    finally:
        await producing.end()
        if receiving is not None:
            await receiving.end()
