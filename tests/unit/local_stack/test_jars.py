"""Kafka's jars, from a repository on loopback in the layout of Maven."""

import hashlib
import os
import re
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from chain_kernel.text import not_installed
from local_stack import jars
from local_stack.errors import FetchFailed, SetupNeeded

JARS = {
    "org.apache.kafka:kafka_2.13:4.1.1": b"broker",
    "org.apache.kafka:kafka-clients:4.1.1": b"clients",
    "org.slf4j:slf4j-simple:1.7.36": b"logging",
}
NAMES = {"kafka_2.13-4.1.1.jar", "kafka-clients-4.1.1.jar", "slf4j-simple-1.7.36.jar"}


class Repository:
    """Serves a folder, counts what is asked for, and can break an answer off."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.asked: list[str] = []
        self.breaks_off: dict[str, int] = {}
        for coordinate, content in JARS.items():
            self.path_of(coordinate).parent.mkdir(parents=True, exist_ok=True)
            self.path_of(coordinate).write_bytes(content)
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, self))
        self.environ = {jars.REPOSITORY_VARIABLE: f"http://127.0.0.1:{self.server.server_port}/"}

    def path_of(self, coordinate: str) -> Path:
        group, name, version = coordinate.split(":")
        return self.folder / group.replace(".", "/") / name / version / f"{name}-{version}.jar"

    def fetch(self, cache: Path) -> Path:
        return jars.fetch_kafka(cache, environ=self.environ)

    @property
    def jars_asked(self) -> list[str]:
        return sorted(path for path in self.asked if path.endswith(".jar"))


class Handler(SimpleHTTPRequestHandler):
    """Serves the files of a repository, without a word."""

    def __init__(self, repository: Repository, *arguments: object) -> None:
        self.repository = repository
        super().__init__(*arguments, directory=str(repository.folder))  # type: ignore[arg-type]

    def do_GET(self) -> None:
        name = self.path.rpartition("/")[2]
        self.repository.asked.append(name)
        if self.repository.breaks_off.get(name, 0) > 0:
            self.repository.breaks_off[name] -= 1
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            self.wfile.write(b"half")
            return
        super().do_GET()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Repository]:
    made = Repository(tmp_path / "repository")
    lock = [jars.Jar(name, hashlib.sha256(content).hexdigest()) for name, content in JARS.items()]
    monkeypatch.setattr(jars, "locked_jars", lambda: lock)
    monkeypatch.setattr(jars, "_PAUSE_S", 0.0)
    thread = threading.Thread(target=made.server.serve_forever, args=(0.01,))
    thread.start()
    yield made
    made.server.shutdown()
    made.server.server_close()
    thread.join()


def left_in(cache: Path) -> set[str]:
    return {path.name for path in cache.iterdir()} - {".kafka.lock"}


def test_fetch_kafka_gives_a_folder_that_others_can_read(
    repository: Repository, tmp_path: Path
) -> None:
    before = os.umask(0o077)
    try:
        folder = repository.fetch(tmp_path / "cache")
    finally:
        os.umask(before)
    assert {jar.name for jar in folder.iterdir()} == NAMES
    assert folder.stat().st_mode & 0o777 == 0o755
    assert {jar.stat().st_mode & 0o777 for jar in folder.iterdir()} == {0o644}
    assert repository.fetch(tmp_path / "cache") == folder
    assert left_in(tmp_path / "cache") == {folder.name}
    assert repository.jars_asked == sorted(NAMES)


def test_fetch_kafka_without_one_jar_leaves_no_folder_and_names_it(
    repository: Repository, tmp_path: Path
) -> None:
    repository.path_of("org.slf4j:slf4j-simple:1.7.36").unlink()
    with pytest.raises(FetchFailed, match=r"org\.slf4j:slf4j-simple:1\.7\.36: "):
        repository.fetch(tmp_path / "cache")
    assert left_in(tmp_path / "cache") == {".jars"}
    assert repository.jars_asked.count("slf4j-simple-1.7.36.jar") == 3


def test_fetch_kafka_refuses_bytes_that_the_lock_does_not_name(
    repository: Repository, tmp_path: Path
) -> None:
    repository.path_of("org.apache.kafka:kafka-clients:4.1.1").write_bytes(b"forged")
    with pytest.raises(FetchFailed, match=r"kafka-clients:4\.1\.1: its bytes are not those"):
        repository.fetch(tmp_path / "cache")
    assert not jars.kafka_folder(tmp_path / "cache").exists()


def test_fetch_kafka_after_one_that_was_killed_asks_for_what_is_missing_alone(
    repository: Repository, tmp_path: Path
) -> None:
    (tmp_path / "cache/.fetching-1/libs").mkdir(parents=True)
    repository.breaks_off["kafka_2.13-4.1.1.jar"] = 4
    with pytest.raises(FetchFailed):
        repository.fetch(tmp_path / "cache")
    repository.asked.clear()
    repository.fetch(tmp_path / "cache")
    assert repository.jars_asked == ["kafka_2.13-4.1.1.jar"] * 2  # it breaks off once more
    assert left_in(tmp_path / "cache") == {jars.kafka_folder(tmp_path / "cache").name}


def test_fetch_kafka_side_by_side_fetches_once(repository: Repository, tmp_path: Path) -> None:
    folders: list[Path] = []
    threads = [
        threading.Thread(target=lambda: folders.append(repository.fetch(tmp_path / "cache")))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(folders) == 4
    assert repository.jars_asked == sorted(NAMES)


def test_fetch_kafka_without_its_package_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jgo.maven", None)
    with pytest.raises(SetupNeeded, match=re.escape(not_installed("jgo.maven", "stack"))):
        jars.fetch_kafka(tmp_path / "cache", environ={})


def test_fetch_kafka_takes_the_folder_that_the_environment_names(tmp_path: Path) -> None:
    environ = {"ORDERCHAIN_KAFKA": str(tmp_path)}
    with pytest.raises(SetupNeeded, match=f"={tmp_path} has no jar of a Kafka broker"):
        jars.fetch_kafka(tmp_path / "cache", environ=environ)
    (tmp_path / "kafka_2.13-3.7.2.jar").touch()
    assert jars.fetch_kafka(tmp_path / "cache", environ=environ) == tmp_path
    assert not (tmp_path / "cache").exists()


def test_lock_names_the_broker_of_this_version_and_every_hash() -> None:
    locked = jars.locked_jars()
    broker = f"org.apache.kafka:kafka_{jars.SCALA_VERSION}:{jars.KAFKA_VERSION}"
    assert broker in {jar.coordinate for jar in locked}
    assert all(len(jar.coordinate.split(":")) == 3 for jar in locked)
    assert all(len(bytes.fromhex(jar.sha256)) == 32 for jar in locked)
    assert len({jar.coordinate for jar in locked}) == len(locked) == 46
