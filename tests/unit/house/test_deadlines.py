"""The bound of what tests wait for, on an idle machine and on a loaded one."""

from __future__ import annotations

import asyncio
import os

import pytest

from tests.deadlines import Deadline, deadline, in_time


def set_loads(monkeypatch: pytest.MonkeyPatch, *loads: float) -> list[float]:
    """Have the machine show these loads, one per look, and then none; return those to come."""
    coming = list(loads)
    monkeypatch.setattr(os, "getloadavg", lambda: (coming.pop(0) if coming else 0.0, 0.0, 0.0))
    return coming


async def test_deadline_on_an_idle_machine_ends_what_hangs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    set_loads(monkeypatch)
    with pytest.raises(TimeoutError):
        async with deadline(0.01):
            await asyncio.Event().wait()


async def test_deadline_on_a_loaded_machine_waits_until_the_load_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    coming = set_loads(monkeypatch, 1e6, 1e6, 1e6)
    with pytest.raises(TimeoutError):
        async with deadline(0.01):
            await asyncio.Event().wait()
    assert not coming


async def test_deadline_of_a_block_that_ended_fires_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    coming = set_loads(monkeypatch, 1.0)
    async with deadline(0.01):
        pass
    await asyncio.sleep(0.03)
    assert coming, "nobody looked"


async def test_result_in_time_is_returned() -> None:
    assert await in_time(asyncio.sleep(0, "done")) == "done"


def test_time_left_is_stretched_by_the_load_per_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    set_loads(monkeypatch, 40.0, 2.0)
    bound = Deadline(60.0)
    assert 500 < bound.left() <= 600
    assert 50 < bound.left() <= 60
