"""The flushes beside a run."""

from __future__ import annotations

import os
from threading import Event
from typing import TYPE_CHECKING

from benchmarks import disk
from benchmarks.disk import DiskWatch

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_flushes_beside_a_run_are_noted_and_the_long_ones_are_stalls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flush, third, numbers = os.fdatasync, Event(), []

    def noted(number: int) -> None:
        flush(number)
        numbers.append(number)
        if len(numbers) == 3:
            third.set()

    monkeypatch.setattr(os, "fdatasync", noted)
    with DiskWatch(tmp_path) as watch:
        third.wait()
    assert len(watch.flushes) == len(numbers) >= 3
    first, second, *_ = watch.flushes
    assert first[0] < first[1] <= second[0] < second[1]
    monkeypatch.setattr(disk, "STALL_NS", 10**12)
    assert watch.stalls() == []
    monkeypatch.setattr(disk, "STALL_NS", 0)
    assert watch.stalls() == watch.flushes
    assert watch.stalls(since_ns=first[1]) == watch.flushes[1:]
    assert list(tmp_path.iterdir()) == []
