"""The bound of what tests wait for, on an idle machine and on a loaded one."""

from __future__ import annotations

import asyncio
import os

import pytest

from tests.deadlines import Deadline, deadline


def set_loads(monkeypatch: pytest.MonkeyPatch, *loads: float) -> list[float]:
    """Have the machine show these loads, one per look, and then none; return those to come."""
    coming = list(loads)
    monkeypatch.setattr(os, "getloadavg", lambda: (coming.pop(0) if coming else 0.0, 0.0, 0.0))
    return coming


@pytest.mark.parametrize("loads", [[], [1e6, 1e6, 1e6]])
async def test_deadline_ends_what_hangs_once_the_machine_is_idle(
    monkeypatch: pytest.MonkeyPatch, loads: list[float]
) -> None:
    coming = set_loads(monkeypatch, *loads)
    with pytest.raises(TimeoutError):
        async with deadline(0.01):
            await asyncio.Event().wait()
    assert not coming


def test_time_left_is_stretched_by_the_load_per_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    set_loads(monkeypatch, 40.0, 2.0)
    bound = Deadline(60.0)
    assert 500 < bound.left() <= 600
    assert 50 < bound.left() <= 60
