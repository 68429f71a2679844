from __future__ import annotations

import gc
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING

from benchmarks.processes import stand_ready

if TYPE_CHECKING:
    import pytest


def test_end_says_that_it_is_ready_once_the_collector_sees_nothing_of_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gc.unfreeze()
    made = [[number] for number in range(1_000)]
    seen_when_said: list[bool] = []

    def write(word: bytes) -> None:
        assert word == b"listening\n"
        tracked = {id(one) for one in gc.get_objects()}
        seen_when_said.append(any(id(one) in tracked for one in made))

    buffer = SimpleNamespace(write=write, flush=lambda: None)
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(buffer=buffer))
    try:
        stand_ready(b"listening")
    finally:
        monkeypatch.undo()
        gc.unfreeze()
    assert seen_when_said == [False]
