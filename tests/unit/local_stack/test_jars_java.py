from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from local_stack import jars
from local_stack.errors import SetupNeeded
from local_stack.folders import Account

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def _nothing_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(jars, "_INSTALLED", tmp_path / "jvm")


def make_java(folder: Path, version: str) -> Path:
    program = folder / "bin/java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-01-01' >&2\n")
    program.chmod(0o755)
    return program


def test_find_java_prefers_java_home(tmp_path: Path) -> None:
    home = make_java(tmp_path / "home", "21.0.4")
    on_path = make_java(tmp_path / "path", "17.0.15")
    environ = {"JAVA_HOME": str(tmp_path / "home"), "PATH": str(on_path.parent)}
    assert jars.find_java(environ) == home


@pytest.mark.parametrize("old", ["11.0.2", "1.8.0_402", "9-internal"])
def test_find_java_passes_over_an_old_one(tmp_path: Path, old: str) -> None:
    make_java(tmp_path / "home", old)
    on_path = make_java(tmp_path / "path", "17")
    environ = {"JAVA_HOME": str(tmp_path / "home"), "PATH": str(on_path.parent)}
    assert jars.find_java(environ) == on_path


def test_find_java_looks_where_the_system_installs(tmp_path: Path) -> None:
    installed = make_java(tmp_path / "jvm/java-25-openjdk", "25-ea")
    assert jars.find_java({"PATH": str(tmp_path / "empty")}) == installed


def test_find_java_passes_over_one_out_of_reach(tmp_path: Path) -> None:
    closed = make_java(tmp_path / "home", "21")
    (tmp_path / "home").chmod(0o700)
    account = Account(name="somebody", user_id=54_321, group_id=54_321, switched=True)
    with pytest.raises(SetupNeeded):
        jars.find_java({"PATH": str(closed.parent)}, account)


def test_find_java_with_none_says_in_one_line_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(SetupNeeded, match="apt-get install default-jre-headless") as caught:
        jars.find_java({"PATH": str(tmp_path), "JAVA_HOME": str(tmp_path)})
    assert "\n" not in str(caught.value)
