"""The test's side of a sequencer in a process of its own."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from sequencer import Ack, SequencerConfig
from tests.deadlines import deadline
from tests.pipes import send_to_child

from .seen import Asked, Seen, seen_of
from .worker import LINE_BYTES_MAX, Report, Submit, payload_of

_ROOT = Path(__file__).parents[2]


class Worker:
    """One process. `acked` and `refused` fill up as it reports."""

    def __init__(self, process: asyncio.subprocess.Process, payload_bytes: int, seen: Seen) -> None:
        self.process = process
        self.seen = seen
        self._began = time.time()
        self.payload_bytes = payload_bytes
        self.acked: dict[str, Ack] = {}
        self.refused: dict[str, Report] = {}
        self.leads: Report | None = None
        self.ended: Report | None = None
        self.submitted: list[str] = []
        self._changed = asyncio.Condition()
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def start(cls, config: SequencerConfig, *, payload_bytes: int = 20) -> Worker:
        """Start a process with these settings; it may not lead yet."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-W", "error", "-m", "tests.faults.worker"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=None,
            cwd=_ROOT,
            limit=LINE_BYTES_MAX,
        )
        worker = cls(process, payload_bytes, seen_of(config))
        await worker._send(msgspec.json.encode(config))
        return worker

    async def submit(self, keys: list[str], *, together: bool = True) -> None:
        """Hand orders over; their answers come in `acked` and `refused`."""
        self.submitted += keys
        self.seen.asked(keys)
        work = Submit(keys=keys, payload_bytes=self.payload_bytes, together=together)
        await self._send(msgspec.json.encode(work))

    async def until_leading(self) -> Report:
        await self._until(lambda: self.leads is not None or self.ended is not None)
        assert self.leads is not None, f"it ended instead: {self.ended}"
        return self.leads

    async def until_acked(self, count: int) -> None:
        """Wait until so many orders are acknowledged."""
        await self._until(lambda: len(self.acked) >= count)

    async def until_answered(self, keys: list[str]) -> None:
        """Wait until each of `keys` is acknowledged or refused."""
        wanted = set(keys)
        await self._until(lambda: wanted <= self.acked.keys() | self.refused.keys())

    async def until_gone(self) -> int:
        """Wait until the process has ended and all it said was read; return its exit code."""
        async with deadline():
            code = await self.process.wait()
            await self._reading
        return code

    async def stop(self) -> int:
        """Stop it in order; return its exit code."""
        send_to_child(self.process, signal.SIGTERM)
        return await self.until_gone()

    async def kill(self) -> None:
        """kill -9, and wait until it is gone; what it had said is read to the end."""
        send_to_child(self.process, signal.SIGKILL)
        await self.until_gone()

    def freeze(self) -> None:
        send_to_child(self.process, signal.SIGSTOP)

    def thaw(self) -> None:
        send_to_child(self.process, signal.SIGCONT)

    async def close(self) -> None:
        """End it, whatever state it is in."""
        await self.kill()
        assert self.process.stdin is not None
        self.process.stdin.close()

    async def _send(self, line: bytes) -> None:
        assert self.process.stdin is not None
        # It may have been killed: `ended` and the missing answers show it.
        with suppress(BrokenPipeError, ConnectionResetError):
            self.process.stdin.write(line + b"\n")
            await self.process.stdin.drain()

    async def _read(self) -> None:
        assert self.process.stdout is not None
        while line := await self.process.stdout.readline():
            if not line.endswith(b"\n"):
                break  # killed in mid sentence: it was not said
            report = msgspec.json.decode(line, type=Report)
            async with self._changed:
                self._note(report)
                self._changed.notify_all()
        async with self._changed:
            self.ended = self.ended or Report("ended", error="killed")
            self._changed.notify_all()

    def _note(self, report: Report) -> None:
        if report.what == "leads":
            self.leads = report
            self.seen.saw("looked", report.head, self._began)
        elif report.what == "ended":
            self.ended = report
        elif report.what == "acked":
            for key, place in zip(report.keys, report.acks, strict=True):
                order, ack = Asked(key, payload_of(key, self.payload_bytes)), Ack(*place)
                self.seen.answered(order, ack)
                self.acked[key] = ack
        else:
            self.seen.failed(report.keys, report.text, is_sure=report.is_sure)
            self.refused.update(dict.fromkeys(report.keys, report))

    async def _until(self, happened: Callable[[], bool]) -> None:
        async with deadline(), self._changed:
            await self._changed.wait_for(lambda: happened() or self._is_over(happened))

    def _is_over(self, happened: Callable[[], bool]) -> bool:
        if self.ended is None or happened():
            return False
        raise AssertionError(f"the sequencer ended too early: {self.ended}")
