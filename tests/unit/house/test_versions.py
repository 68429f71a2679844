"""Versions that are claimed are run: the plan, the page, and the workflow that runs them."""

import re
import sys
import tomllib

import pytest
import yaml

from tests.programs import output_of
from tests.sources import ROOT
from tools import versions

PAGE = (ROOT / "docs/versions.md").read_text(encoding="utf-8")
WORKFLOW = ROOT / ".github/workflows/checks.yml"


def test_every_version_that_is_claimed_is_run() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    classified = re.findall(r"Python :: (3\.\d+)", " ".join(project["classifiers"]))
    releases = {part.name: part.releases for part in versions.PARTS}
    assert list(releases["Python"]) == classified
    assert {"15", "16", "17", "18"} <= releases["PostgreSQL"].keys()
    assert {"3.7", "3.9", "4.0", "4.1"} <= releases["Kafka"].keys()
    first, *_, last = releases["PySpark"]
    (spark,) = (each for each in project["optional-dependencies"]["spark"] if "pyspark" in each)
    assert spark == f"pyspark>={first},<4.{int(last.removeprefix('4.')) + 1}"
    for part in versions.PARTS:
        assert all((ROOT / name).exists() for name in part.tests)


def test_page_has_a_row_for_each_version() -> None:
    assert versions.with_rows(PAGE, []) == PAGE, "make versions"
    assert not [row for row in versions.rows_of(PAGE) if versions.NOT_RUN in row.result]


@pytest.mark.nightly
def test_workflow_is_one() -> None:
    """Read by a linter with the schema that its server publishes."""
    schema = ("--builtin-schema", "vendor.github-workflows")
    output_of(sys.executable, "-m", "check_jsonschema", *schema, WORKFLOW)


def test_workflow_runs_every_lane_by_make() -> None:
    jobs = yaml.safe_load(WORKFLOW.read_text(encoding="utf-8"))["jobs"]
    run = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    assert run == ["make check", "make test", "make nightly", "make coverage", "make versions"]
    targets = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert all(f"\n{line.removeprefix('make ')}: " in targets for line in run)
