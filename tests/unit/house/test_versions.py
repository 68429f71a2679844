"""Versions that are claimed are run: the plan, the page, and the workflow that runs them."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
import tomllib
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.sources import ROOT

if TYPE_CHECKING:
    from pathlib import Path

PAGE = (ROOT / "docs/versions.md").read_text(encoding="utf-8")
WORKFLOW = ROOT / ".github/workflows/checks.yml"


@pytest.fixture
def versions(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT))
    return importlib.import_module("tools.versions")


def part_of(versions: ModuleType, name: str) -> Any:
    return next(part for part in versions.PARTS if part.name == name)


def test_every_version_that_is_claimed_is_run(versions: ModuleType) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    classified = re.findall(r"Python :: (3\.\d+)", " ".join(project["classifiers"]))
    assert list(part_of(versions, "Python").releases) == classified
    assert {"15", "16", "17", "18"} <= part_of(versions, "PostgreSQL").releases.keys()
    assert {"3.7", "3.9", "4.0", "4.1"} <= part_of(versions, "Kafka").releases.keys()
    for part in versions.PARTS:
        assert all((ROOT / name).exists() for name in part.tests)


def test_page_has_a_row_for_each_version(versions: ModuleType) -> None:
    assert versions.with_rows(PAGE, []) == PAGE, "make versions"


def test_row_replaces_that_of_its_version_alone(versions: ModuleType) -> None:
    row = versions.Row("Kafka 3.9.9", "demo", "failed: the demo ended with 1")
    page = versions.with_rows(PAGE, [row])
    assert "\n| Kafka 3.9.9 | demo | failed: the demo ended with 1 |\n" in page
    before, after = versions.rows_of(PAGE), versions.rows_of(page)
    assert sum(one != other for one, other in zip(before, after, strict=True)) == 1
    assert versions.with_rows(page, []) == page


def test_version_without_a_run_is_shown_as_that(versions: ModuleType) -> None:
    page = versions.with_rows(f"text\n{versions.BEGIN}{versions.END}\nmore\n", [])
    assert page.endswith("\nmore\n")
    assert {row.result for row in versions.rows_of(page)} == {"not run"}


def test_version_that_cannot_be_had_is_not_run(versions: ModuleType) -> None:
    def missing(version: str, release: str) -> None:
        raise versions.Missing(f"there is no python{version}")

    row = versions.run(versions.Part("Python", {"3.99": ""}, (), missing), "3.99")
    assert row == versions.Row("Python 3.99", "", "not run: there is no python3.99")


def test_first_step_that_fails_is_the_result(
    versions: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"

    def outcome(demo: int, tests: int, counts: str) -> object:
        monkeypatch.setattr(versions, "_demo", lambda *_: demo)
        monkeypatch.setattr(versions, "_step", lambda *_: tests)
        log.write_text(f"waited in 3.00s\n{counts} in 61.02s (0:01:01)\n")
        with log.open("ab") as output:
            return versions._outcome(versions.Place("1"), ("tests/contract",), output, log)

    assert outcome(3, 0, "9 passed") == ("demo", "failed: the demo ended with 3")
    failed = "demo, tests: 1 failed, 9 passed", "failed: pytest ended with 1"
    assert outcome(0, 1, "===== 1 failed, 9 passed") == failed
    assert outcome(0, 0, "9 passed") == ("demo, tests: 9 passed", "passed")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["kafka"], ["Kafka 3.7", "Kafka 3.9", "Kafka 4.0", "Kafka 4.1"]),
        (["Kafka=3.9", "postgresql=15"], ["PostgreSQL 15", "Kafka 3.9"]),
    ],
)
def test_words_choose_parts_and_versions(
    versions: ModuleType, words: list[str], expected: list[str]
) -> None:
    assert [f"{part.name} {version}" for part, version in versions.chosen(words)] == expected


def test_word_that_names_no_part_is_refused(
    versions: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert versions.main(["kafka=2.8"]) == 2
    assert "the part was 'kafka=2.8', expected one of " in capsys.readouterr().err


@pytest.mark.nightly
def test_workflow_is_one() -> None:
    """Read by a linter with the schema that its server publishes."""
    schema = ("--builtin-schema", "vendor.github-workflows")
    command = [sys.executable, "-m", "check_jsonschema", *schema, str(WORKFLOW)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_workflow_runs_every_lane_by_make() -> None:
    jobs = yaml.safe_load(WORKFLOW.read_text(encoding="utf-8"))["jobs"]
    run = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    assert run == ["make check", "make test", "make nightly", "make versions"]
    targets = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert all(f"\n{line.removeprefix('make ')}: " in targets for line in run)
