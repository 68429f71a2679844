from pathlib import Path

import pytest

from local_stack import jars
from local_stack.errors import SetupNeeded
from local_stack.folders import Account


@pytest.fixture(autouse=True)
def _nothing_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(jars, "_INSTALLED", tmp_path / "jvm")


def make_java(folder: Path, version: str) -> Path:
    program = folder / "bin/java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-01-01' >&2\n")
    program.chmod(0o755)
    return program


@pytest.mark.parametrize(
    ("home", "on_path", "installed", "found"),
    [
        ("21.0.4", "17.0.15", "25-ea", "home"),
        ("11.0.2", "17", "25-ea", "path"),
        ("1.8.0_402", "9-internal", "25-ea", "jvm/java"),
    ],
)
def test_find_java_takes_the_first_that_is_new_enough(
    home: str, on_path: str, installed: str, found: str, tmp_path: Path
) -> None:
    make_java(tmp_path / "home", home)
    make_java(tmp_path / "path", on_path)
    make_java(tmp_path / "jvm/java", installed)
    environ = {"JAVA_HOME": str(tmp_path / "home"), "PATH": str(tmp_path / "path/bin")}
    assert jars.find_java(environ) == tmp_path / found / "bin/java"


def test_find_java_with_none_in_reach_says_in_one_line_what_to_install(tmp_path: Path) -> None:
    closed = make_java(tmp_path / "home", "21")
    (tmp_path / "home").chmod(0o700)
    account = Account(name="somebody", user_id=54_321, group_id=54_321, switched=True)
    with pytest.raises(SetupNeeded, match="apt-get install default-jre-headless") as caught:
        jars.find_java({"PATH": str(closed.parent)}, account)
    assert "\n" not in str(caught.value)
