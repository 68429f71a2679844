import asyncio
import struct
from collections.abc import Sequence
from typing import Any, cast

import asyncpg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain_kernel.clients.pipeline import Pipeline
from chain_kernel.clients.session import SyncWaitCancelled

COPY_IN = b"G\x00\x00\x00\x07\x01\x00\x00"
DONE = b"C\x00\x00\x00\x0bCOPY 3\x00"
READY = b"Z\x00\x00\x00\x05I"
NOTICE = b"N\x00\x00\x00\x05\x00"


def failed(sqlstate: str, message: str) -> bytes:
    fields = b"SERROR\0C" + sqlstate.encode() + b"\0M" + message.encode() + b"\0\0"
    return b"E" + struct.pack("!i", len(fields) + 4) + fields


class Driver(asyncio.Protocol):
    lost: Exception | str | None = "no"

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = exc


class Wire:
    """A connection as the driver holds it, with what was written to it."""

    def __init__(self) -> None:
        self._protocol = Driver()
        self._transport = self
        self.protocol: object = self._protocol
        self.written = b""

    def set_protocol(self, protocol: object) -> None:
        self.protocol = protocol

    @property
    def is_the_drivers(self) -> bool:
        """Whether what arrives goes to the driver."""
        return self.protocol is self._protocol

    def writelines(self, parts: Sequence[bytes]) -> None:
        self.written += b"".join(parts)


def make_pipeline() -> tuple[Wire, Pipeline]:
    wire = Wire()
    return wire, Pipeline(cast("Any", wire))


async def test_prepared_statement_goes_with_its_values_and_its_end() -> None:
    wire, pipeline = make_pipeline()
    answer = pipeline.execute("add", 2, [b"\x00\x00\x00\x01", b"a\x00\x00\x00\x02bc"])
    bound = b"\0add\0" + struct.pack("!hhh", 1, 1, 2) + b"\x00\x00\x00\x01a\x00\x00\x00\x02bc\0\0"
    assert wire.written == (
        b"B" + struct.pack("!i", len(bound) + 4) + bound
        + b"E\x00\x00\x00\x09\x00\x00\x00\x00\x00" + b"S\x00\x00\x00\x04"
    )  # fmt: skip
    pipeline.data_received(b"2\x00\x00\x00\x04" + DONE)
    assert not answer.done()
    pipeline.data_received(READY)
    assert answer.result() is None
    assert wire.is_the_drivers


@given(cuts=st.lists(st.integers(1, 40), max_size=20))
def test_answers_come_in_order_however_the_stream_is_cut(cuts: list[int]) -> None:
    async def story() -> None:
        wire, pipeline = make_pipeline()
        answers = [pipeline.send("COPY", []) for _ in range(3)]
        stream = (
            COPY_IN + DONE + READY + failed("22012", "division") + READY + NOTICE + DONE + READY
        )
        start = 0
        for cut in cuts:
            pipeline.data_received(stream[start : start + cut])
            start += cut
        pipeline.data_received(stream[start:])
        assert answers[0].result() is None
        assert isinstance(answers[1].exception(), asyncpg.DivisionByZeroError)
        assert answers[2].result() is None
        assert wire.is_the_drivers

    asyncio.run(story())


async def test_driver_has_the_connection_back_only_behind_the_last_answer() -> None:
    wire, pipeline = make_pipeline()
    assert wire.is_the_drivers
    first, second = pipeline.send("COPY", []), pipeline.send("COPY", [])
    pipeline.data_received(DONE + READY)
    assert first.done()
    assert wire.protocol is pipeline
    waiting = asyncio.ensure_future(pipeline.idle())
    await asyncio.sleep(0)
    assert not waiting.done()
    pipeline.data_received(DONE + READY)
    await waiting
    assert second.done()
    assert wire.is_the_drivers


@pytest.mark.parametrize("reason", [None, OSError("gone")])
async def test_lost_connection_ends_every_answer(reason: Exception | None) -> None:
    wire, pipeline = make_pipeline()
    answers = [pipeline.send("COPY", []) for _ in range(2)]
    pipeline.data_received(DONE[:4])
    pipeline.connection_lost(reason)
    for answer in answers:
        with pytest.raises(OSError, match="gone" if reason else "closed the connection"):
            await answer
    assert wire._protocol.lost is reason


def warning(routine: bytes) -> bytes:
    """A warning as the server sends it; what it says for people is in the server's language."""
    fields = b"SWARNUNG\0VWARNING\0C01000\0Mes wird gewarnt\0R" + routine + b"\0\0"
    return b"N" + struct.pack("!i", len(fields) + 4) + fields


async def test_commit_whose_standby_was_not_waited_for_is_no_success() -> None:
    _, pipeline = make_pipeline()
    first, second = pipeline.send("COPY", []), pipeline.send("COPY", [])
    pipeline.data_received(COPY_IN + warning(b"SyncRepWaitForLSN") + DONE + READY)
    pipeline.data_received(COPY_IN + DONE + READY)
    with pytest.raises(SyncWaitCancelled):
        await first
    assert second.result() is None


async def test_other_warnings_say_nothing_of_a_commit() -> None:
    """As that of a trigger, or that the database should be vacuumed: with the same code."""
    _, pipeline = make_pipeline()
    answer = pipeline.send("COPY", [])
    pipeline.data_received(COPY_IN + warning(b"exec_stmt_raise") + DONE + READY)
    assert answer.result() is None


async def test_asker_that_has_gone_harms_nobody_behind_it() -> None:
    _, pipeline = make_pipeline()
    first, second = pipeline.send("COPY", []), pipeline.send("COPY", [])
    first.cancel()
    pipeline.data_received(failed("22012", "x") + READY + DONE + READY)
    assert second.result() is None
