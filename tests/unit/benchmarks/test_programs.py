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


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ("full_rate --orders 1000", "argument --orders: was '1000', expected at least 1,000,000"),
        ("full_rate --orders many", "argument --orders: was 'many', expected at least 1,000,000"),
        ("fill --repeats 0", "argument --repeats: was '0', expected a number above 0"),
        ("loss --share nan", "argument --share: was 'nan', expected a number above 0"),
    ],
)
def test_program_with_a_number_that_gives_no_figure_is_refused_before_anything_starts(
    arguments: str, line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("it was started")

    monkeypatch.setattr(programs, "_measured", refuse)
    monkeypatch.setattr(sys, "argv", ["programs", *arguments.split()])
    with pytest.raises(SystemExit) as ended:
        programs.main()
    assert ended.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1].endswith(f"error: {line}")
