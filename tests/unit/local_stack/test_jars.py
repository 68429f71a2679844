from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING

import pytest

from local_stack import jars
from local_stack.errors import FetchFailed

if TYPE_CHECKING:
    from pathlib import Path

FETCHES = """\
for word; do last=$word; done          # the pattern of -retrieve
folder=${last%/*}
mkdir "$folder" && touch "$folder/kafka_2.13-4.1.1.jar"
"""
FAILS = """\
echo '   :: org.apache.kafka#kafka_2.13;4.1.1: not found'
exit 1
"""


class Resolver:
    """Stands in for Java and the resolver: a script that counts its runs."""

    def __init__(self, folder: Path) -> None:
        self.program = folder / "java"
        self.runs_path = folder / "runs"
        self.does(FETCHES)

    def does(self, script: str) -> None:
        self.program.write_text(f"#!/bin/sh\necho run >>'{self.runs_path}'\n{script}")
        self.program.chmod(0o755)

    @property
    def runs(self) -> int:
        return len(self.runs_path.read_text().splitlines()) if self.runs_path.exists() else 0


@pytest.fixture
def resolver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Resolver:
    made = Resolver(tmp_path)
    monkeypatch.setattr(jars, "find_java", lambda _: made.program)
    monkeypatch.setattr(jars, "_find_resolver", lambda: tmp_path / "ivy.jar")
    monkeypatch.setattr(jars, "_PAUSE_S", 0.0)
    monkeypatch.setattr(jars, "_POLL_S", 0.01)
    return made


def fetch(cache: Path) -> Path:
    return jars.fetch_kafka(cache, environ=os.environ)


def left_in(cache: Path) -> set[str]:
    return {path.name for path in cache.iterdir()} - {".kafka.lock"}


def test_fetch_kafka_gives_a_folder_that_others_can_read(
    resolver: Resolver, tmp_path: Path
) -> None:
    before = os.umask(0o077)
    try:
        folder = fetch(tmp_path / "cache")
    finally:
        os.umask(before)
    assert [jar.name for jar in folder.iterdir()] == ["kafka_2.13-4.1.1.jar"]
    assert folder.stat().st_mode & 0o777 == 0o755
    assert next(folder.iterdir()).stat().st_mode & 0o777 == 0o644
    assert left_in(tmp_path / "cache") == {folder.name}
    assert resolver.runs == 1


def test_fetch_kafka_the_second_time_runs_nothing(resolver: Resolver, tmp_path: Path) -> None:
    assert fetch(tmp_path / "cache") == fetch(tmp_path / "cache")
    assert resolver.runs == 1


def test_fetch_kafka_that_fails_leaves_no_folder_and_tells_what_is_missing(
    resolver: Resolver, tmp_path: Path
) -> None:
    resolver.does(FAILS)
    with pytest.raises(FetchFailed, match=r"kafka#kafka_2\.13;4\.1\.1: not found"):
        fetch(tmp_path / "cache")
    assert left_in(tmp_path / "cache") == set()
    assert resolver.runs == 3


def test_fetch_kafka_that_breaks_off_once_tries_again(resolver: Resolver, tmp_path: Path) -> None:
    resolver.does(f"if [ $(wc -l <'{resolver.runs_path}') = 1 ]; then exit 1; fi\n{FETCHES}")
    assert fetch(tmp_path / "cache").is_dir()
    assert resolver.runs == 2


def test_fetch_kafka_interrupted_leaves_no_folder(
    resolver: Resolver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched = tmp_path / "fetched"

    def interrupt(*_: object) -> bool:
        while not fetched.exists():  # a script that is killed leaves the command that it runs alive
            time.sleep(0.01)
        raise KeyboardInterrupt

    resolver.does(f"{FETCHES}\ntouch '{fetched}'\nexec sleep 60")
    monkeypatch.setattr(jars, "_follow", interrupt)
    with pytest.raises(KeyboardInterrupt):
        fetch(tmp_path / "cache")
    assert left_in(tmp_path / "cache") == set()


def test_fetch_kafka_clears_what_a_killed_fetch_left(resolver: Resolver, tmp_path: Path) -> None:
    left_over = tmp_path / "cache/.fetching-1/libs"
    left_over.mkdir(parents=True)
    folder = fetch(tmp_path / "cache")
    assert left_in(tmp_path / "cache") == {folder.name}
    assert resolver.runs == 1


def test_fetch_kafka_side_by_side_runs_once(resolver: Resolver, tmp_path: Path) -> None:
    resolver.does(f"sleep 0.3\n{FETCHES}")
    folders: list[Path] = []
    threads = [
        threading.Thread(target=lambda: folders.append(fetch(tmp_path / "cache"))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(folders) == 4
    assert resolver.runs == 1
