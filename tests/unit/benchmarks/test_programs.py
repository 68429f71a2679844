from __future__ import annotations

import inspect
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from benchmarks import programs
from benchmarks.programs import PROGRAMS, figures_of, last_result

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("name", PROGRAMS)
def test_program_takes_the_options_that_it_has(name: str) -> None:
    program = PROGRAMS[name]
    measure = getattr(import_module(f"benchmarks.parts.{program.module}"), name)
    expected = ["site"] * program.has_site + list(program.options)
    assert sorted(inspect.signature(measure).parameters) == sorted(expected)


def test_program_that_needs_no_server_saves_its_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise AssertionError("the servers of a benchmark that runs meanwhile were touched")

    monkeypatch.setattr(programs, "benchmark_stack", refuse)
    monkeypatch.setattr(programs, "RESULTS", tmp_path)
    arguments = ["programs", "receiver_core", "--repeats", "1", "--orders", "5000"]
    monkeypatch.setattr(sys, "argv", arguments)
    programs.main()
    result: Any = last_result("receiver_core", tmp_path)
    assert result["orders"] == 5_000
    assert len(figures_of(result)) == 4 * 4 * 3
    assert msgspec.json.encode(result["cases"]["frames of 100"]["core"]["to_plain"])
