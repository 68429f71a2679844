"""`seal export --to URL`: what goes out, and what becomes of each answer."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
import pytest

from chain_kernel.text import not_installed
from chain_verifier.seal_files import SealFile
from chainctl.commands.verifier.seal import SealLine
from tests.command_call import Done, call_here

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

CHAIN, HEAD = 7, 500
SETTINGS = {"CHAINCTL_DATABASE": "postgresql://auditor@127.0.0.1:1/none"}

Export: TypeAlias = "Callable[[str], Done]"


@pytest.fixture
def export(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], Done]:
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

    def run(place: str) -> Done:
        return call_here(["seal", "export", "--to", place], SETTINGS, tmp_path)

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
    assert "--to" in line
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
    assert "--to" in line
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
