"""`seal export --store`: what goes out, and what an answer, or a disk, leads to."""

import errno
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Any, TypeAlias

import msgspec
import pytest

from chain_kernel.text import not_installed
from chain_verifier.seal_files import SealFile
from chainctl.commands.verifier.seal import SealLine
from tests.command_call import Done, call_here

CHAIN, HEAD = 7, 500
SETTINGS = {"CHAINCTL_DATABASE": "postgresql://auditor@127.0.0.1:1/none"}

Export: TypeAlias = "Callable[..., Done]"


@pytest.fixture
def export(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Export:
    """Exports the seal of one chain to a place; no database is asked."""
    line = SealLine(
        chain_id=CHAIN,
        id=HEAD,
        seal="ab" * 32,
        committed_at="2026-11-25T12:00:00.000000Z",
        database_id="6f5c9c56-0000-4000-8000-000000000000",
    )

    async def seals(*_: object) -> list[SealLine]:
        return [line]

    monkeypatch.setattr("chainctl.commands.verifier.seal._seals", seals)
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)

    def run(place: object, *more: str) -> Done:
        return call_here(["seal", "export", "--store", place, *more], SETTINGS, tmp_path)

    return run


class Server:
    """What it answers, and the requests that came."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.requests: list[tuple[str, str, str | None, bytes]] = []


@contextmanager
def answering(status: int, *, hangs: bool = False) -> Iterator[Server]:
    ended = Event()

    class Handler(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            kind = self.headers["Content-Type"]
            server.requests.append((self.command, self.path, kind, body))
            if hangs:
                ended.wait()
                return
            self.send_response(status)
            self.send_header("Location", "/elsewhere")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Stay silent."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        server = Server(f"http://127.0.0.1:{http.server_port}")
        thread = Thread(target=http.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            ended.set()
            http.shutdown()
            thread.join()


def one_line(done: Done, code: int) -> str:
    """The one line of an error, whose exit code is `code`."""
    assert (done.code, done.out) == (code, ""), done
    assert done.err.count("\n") == 1, done
    return done.err


@pytest.mark.parametrize("status", [200, 201, 204])
def test_seal_export_to_a_url_puts_the_file_below_it(export: Export, status: int) -> None:
    with answering(status) as server:
        done = export(f"{server.url}/vault/")
    assert done.code == 0, done
    ((method, path, kind, body),) = server.requests
    assert (method, kind) == ("PUT", "application/json")
    seal = msgspec.json.decode(body, type=SealFile)
    assert (seal.chain_id, seal.id, seal.seal) == (CHAIN, HEAD, "ab" * 32)
    assert path == f"/vault/{seal.name}"
    assert body.startswith(b"{\n  "), "one field per line, as in a folder"
    assert f"seal of chain {CHAIN} at {HEAD} stored as {server.url}{path}\n" in done.err


@pytest.mark.parametrize("status", [401, 403, 404, 405])
def test_seal_export_to_a_url_that_takes_no_files_is_refused(export: Export, status: int) -> None:
    with answering(status) as server:
        line = one_line(export(server.url), 2)
    assert "--store" in line
    assert "a place that takes files" in line
    assert str(status) in line


@pytest.mark.parametrize("status", [307, 500, 503])
def test_seal_export_to_a_server_in_trouble_may_be_tried_again(export: Export, status: int) -> None:
    with answering(status) as server:
        assert str(status) in one_line(export(server.url), 3)
    assert len(server.requests) == 1, "no redirect is followed"


def test_seal_export_to_an_unreachable_server_may_be_tried_again(export: Export) -> None:
    with answering(200) as server:
        pass
    assert server.url.removeprefix("http://") in one_line(export(server.url), 3)


def test_seal_export_to_a_silent_server_ends_at_its_deadline(
    export: Export, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chainctl.commands.verifier.seal._UPLOAD_SECONDS", 0.2)
    with answering(200, hangs=True) as server:
        assert server.url.removeprefix("http://") in one_line(export(server.url), 3)


@pytest.mark.parametrize("url", ["http://", "http://host:port/", "http://user:secret@host/"])
def test_seal_export_to_what_is_no_url_is_refused(export: Export, url: str) -> None:
    line = one_line(export(url), 2)
    assert "--store" in line
    assert "secret" not in line


def test_seal_export_to_a_url_goes_through_the_proxy_of_the_environment(
    export: Export, monkeypatch: pytest.MonkeyPatch
) -> None:
    with answering(200) as server:
        monkeypatch.setenv("http_proxy", server.url)
        assert export("http://vault.example/seals").code == 0
    ((_, path, _, _),) = server.requests
    assert path.startswith("http://vault.example/seals/seal-")


def test_seal_export_to_a_url_without_httpx_says_what_to_install(
    export: Export, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "httpx", None)
    monkeypatch.delitem(sys.modules, "outbox.http_call", raising=False)
    line = one_line(export("http://127.0.0.1:1/"), 2)
    assert not_installed("httpx", "cli") in line


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The errors with which the disk answers next; afterwards it is well."""
    errors: list[int] = []
    sync = os.fsync

    def fail(descriptor: int) -> None:
        if errors:
            number = errors.pop()
            raise OSError(number, os.strerror(number))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", fail)
    return errors


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_seal_export_to_a_disk_in_trouble_may_be_tried_again_and_leaves_nothing(
    export: Export, disk: list[int], tmp_path: Path, number: int
) -> None:
    disk += [number]
    line = one_line(export(tmp_path / "vault"), 3)
    assert f"{tmp_path / 'vault'}: {os.strerror(number)}" in line
    assert list((tmp_path / "vault").iterdir()) == []


def test_seal_export_again_and_again_outlives_a_full_disk(
    export: Export, disk: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr("chainctl.commands.verifier.seal.time.sleep", pause)
    disk += [errno.ENOSPC]
    done = export(tmp_path, "--every", "1h", "--json")
    assert (done.code, pauses) == (130, [3_600, 3_600]), done
    assert "trying again" in done.err
    assert msgspec.json.decode(done.out, type=SealFile).id == HEAD


def test_seal_export_to_where_no_folder_can_be_is_refused(export: Export, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place in ("file", "file/below", "/proc/seals", "x" * 300):
        assert "--store" in one_line(export(tmp_path / place), 2)
