"""HTTP servers beside ours, under strangers: the table of decision 48.

`pip install --target FOLDER granian uvicorn httptools`, then `PYTHONPATH=FOLDER python -m
benchmarks.http_servers [DSN]`. Each server and each stranger is a process. A probe connects twice a
second, and asks 20 ms later. DSN: a database with an outbox that has the destination `bench`.
"""

import asyncio
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

_APP: Final = "--host 127.0.0.1 --port {port} benchmarks.http_servers:{app}"
_SERVERS: Final = {
    "granian": f"granian --interface asgi --http 1 --no-ws --no-log --backlog 8192 {_APP}",
    "ours": "benchmarks.http_servers serve {port} {app}",
    "uvicorn": f"uvicorn --http httptools --log-level critical {_APP}",
}
_BODY: Final = bytes(700_000)
_SECONDS: Final = 12.0
_GET: Final = b"GET /livez HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer token\r\n\r\n"
_HEAD: Final = b"GET / HTTP/1.1\r\nHost: x\r\n"


async def plain(scope: Any, receive: Any, send: Any) -> None:  # noqa: ANN401 - ASGI's
    """Answer in two bytes, `/large` with 700 kB, `/slow` after half a second."""
    if scope["type"] == "http":
        await asyncio.sleep(0.5 if scope["path"] == "/slow" else 0)
        while (await receive()).get("more_body"):
            pass
        body = _BODY if scope["path"] == "/large" else b"ok"
        headers = [(b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


@cache
def _message_app() -> Any:  # noqa: ANN401 - Starlette's
    from chain_kernel.clock import SystemClock
    from outbox.sender.config import RelayConfig
    from outbox.service import app, config, message_api

    relay = RelayConfig(database=os.environ["BENCHMARK_DATABASE"], kafka="unused:9092")
    service = config.ServiceConfig(relay=relay)
    tokens = (config.hash_token("token").hex(),)
    client = config.Client(name="bench", token_sha256=tokens, destinations=("*",))
    api = message_api.MessageApi(service, SystemClock())
    return app.MessageApp(service, config.Clients([client]), api).asgi


async def messages(scope: Any, receive: Any, send: Any) -> None:  # noqa: ANN401 - ASGI's
    """Answer as the message service does."""
    if scope["type"] == "http":
        await _message_app()(scope, receive, send)


def _serve(port: int, app: str) -> None:
    from chain_kernel.clients.http_server import HttpLimits, HttpServer, connections_max

    server = HttpServer(globals()[app], HttpLimits(connections_max=connections_max()))
    asyncio.run(server.serve(socket.create_server(("127.0.0.1", port))))


def _connected(port: int, timeout: float = 60.0) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout)


def _ahead(port: int) -> None:
    stranger = _connected(port)
    if os.fork():
        while stranger.recv(2**20):
            pass
    while True:
        stranger.sendall(_GET * 1_000)


def _chunks(port: int) -> None:
    head = _HEAD.replace(b"GET", b"POST") + b"Transfer-Encoding: chunked\r\n\r\n"
    os.fork()
    os.fork()
    while True:
        with suppress(OSError), _connected(port) as stranger:
            stranger.sendall(head + b"1\r\nx\r\n" * 2**20)


def _crowd(port: int) -> None:
    held, began = deque[socket.socket](maxlen=1_000), time.monotonic()
    for count in range(10**9):
        with suppress(OSError):
            held.append(_connected(port))  # the first of a thousand is closed
        time.sleep(max(0.0, began + count / 7_000 - time.monotonic()))


def _held(count: int, sent: bytes, port: int) -> None:
    opened = [_connected(port) for _ in range(count)]
    for each in opened:
        with suppress(OSError):  # it made room for another one
            each.sendall(sent)
    signal.pause()


_LARGE: Final = _GET.replace(b"livez", b"large")
_STRANGERS: Final[dict[str, tuple[int, Callable[[int], None]]]] = {
    "one connection that sends ahead": (1_000, _ahead),
    "four of one-byte chunks": (1_000, _chunks),
    "7,000 connections/s, 500 places": (500, _crowd),
    "300 idle, 200 places": (200, partial(_held, 300, b"")),
    "1,200 idle, 1,000 places": (1_000, partial(_held, 1_200, b"")),
    "140 that read nothing, of 700 kB": (1_000, partial(_held, 140, _LARGE)),
    "500 that read nothing, 500 places": (500, partial(_held, 500, _LARGE)),
    "4,000 idle, 5,000 places": (5_000, partial(_held, 4_000, b"")),
}
_QUESTIONS: Final = {
    "a header that is never whole": _HEAD,
    "a header of 1 MB": _HEAD + b"X: " + b"x" * 2**20 + b"\r\n\r\n",
    "two lengths": _HEAD + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nxx",
    "obs-fold": _HEAD + b"A: b\r\n c\r\n\r\n",
    "two Hosts": _HEAD + b"Host: y\r\n\r\n",
    "an unknown encoding": _HEAD + b"Transfer-Encoding: br\r\n\r\n",
    "a half-close": _GET,
    "a half-close, answered after 0.5 s": _GET.replace(b"livez", b"slow"),
}
_MESSAGE: Final = b'{"messages":[{"destination":"bench","payload":"eHh4"}]}'
_JSON: Final = b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(_MESSAGE)
_SEND: Final = _GET.replace(b"GET /livez", b"POST /v1/messages/send")[:-2] + _JSON + _MESSAGE
_RATES: Final = {
    "requests/s": ("plain", _GET),
    "message service, sends/s": ("messages", _SEND),
    "message service, GETs/s": ("messages", _GET),
}


@contextmanager
def _serving(name: str, places: int = 1_000, app: str = "plain") -> Iterator[tuple[int, int]]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = f"prlimit --nofile={places + 128} {sys.executable} -m {_SERVERS[name]}"
    words = command.format(port=port, app=app).split()
    with subprocess.Popen(words, start_new_session=True) as server:
        try:
            for _ in range(200):
                time.sleep(0.05)
                with suppress(OSError), _connected(port):
                    break
            yield port, server.pid
        finally:
            os.killpg(server.pid, signal.SIGKILL)  # asked to end, one waits for its clients


def _mib(process: int, kind: str) -> int:
    children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    texts = [Path(f"/proc/{each}/status").read_text() for each in (process, *children)]
    return max(int(each.partition(kind)[2].split()[0]) for each in texts) // 1_024


def _alone(port: int, stranger: Callable[[int], None]) -> None:
    os.setpgrp()  # with the processes that it forks
    stranger(port)


def _under(port: int, process: int, stranger: Callable[[int], None]) -> str:
    before, took = _mib(process, "VmRSS:"), []
    child = multiprocessing.Process(target=_alone, args=(port, stranger))
    child.start()
    for _ in range(int(_SECONDS * 2)):
        began = time.monotonic()
        with suppress(OSError), _connected(port, timeout=5.0) as probe:
            time.sleep(0.02)
            probe.sendall(_GET)
            if b"200" in probe.recv(100):
                took.append(time.monotonic() - began)
        time.sleep(max(0.0, began + 0.5 - time.monotonic()))
    os.killpg(child.pid or 0, signal.SIGKILL)
    child.join()
    return f"{before}, {_mib(process, 'VmHWM:')}; {len(took)}, {max(took, default=0):.2f} s"


def _answer(port: int, question: str) -> str:
    began, found = time.monotonic(), b""
    with suppress(OSError), _connected(port) as client:
        with suppress(OSError):
            client.sendall(_QUESTIONS[question])
        if "half-close" in question:
            client.shutdown(socket.SHUT_WR)
        found = client.recv(100)
    return f"{found[9:12].decode() or 'closed'}, {time.monotonic() - began:.1f} s"


async def _client(port: int, request: bytes) -> int:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    done, until = 0, time.monotonic() + _SECONDS
    while time.monotonic() < until:
        writer.write(request)
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        if b" 200 " not in head:
            raise RuntimeError(f"was answered: {head.decode()}")
        await reader.readexactly(int(head.partition(b"content-length: ")[2].split()[0]))
        done += 1
    writer.close()
    return done


async def _rate(port: int, request: bytes) -> str:
    done = await asyncio.gather(*(_client(port, request) for _ in range(32)))
    return f"{sum(done) / _SECONDS:,.0f}"


def _cell(row: str, name: str) -> str:
    if row in _STRANGERS:
        with _serving(name, _STRANGERS[row][0]) as (port, process):
            return _under(port, process, _STRANGERS[row][1])
    app, request = _RATES.get(row, ("plain", b""))
    with _serving(name, app=app) as (port, _):
        return asyncio.run(_rate(port, request)) if request else _answer(port, row)


def main(dsn: str = "", rows: str = "") -> None:
    """Print MiB before and at most, probes answered and the slowest; status; requests a second."""
    os.environ["BENCHMARK_DATABASE"] = dsn
    names = [name for name in _SERVERS if name == "ours" or find_spec(name)]
    for row in (*_STRANGERS, *_QUESTIONS, *_RATES):
        if rows in row and (dsn or "message" not in row):
            cells = [row, *(_cell(row, name) for name in names), f"load {os.getloadavg()[0]:.1f}"]
            print(f"|{'|'.join(cells)}|", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        _serve(int(sys.argv[2]), sys.argv[3])
    else:
        main(*sys.argv[1:])
