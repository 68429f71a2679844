"""Requests whose end two parsers may see in two places: the shipped proxy and we see the same."""

import asyncio
import socket
import ssl
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from chain_kernel.clients.http_server import HttpLimits, HttpServer
from tests.certificates import Authority
from tests.deadlines import in_time

from .test_proxy import PROGRAM, proxied

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(PROGRAM is None, reason="no nginx (Debian: apt-get install nginx-light)"),
]

HOST = b"Host: messages.example\r\n"
CHUNKED = b"Transfer-Encoding: chunked"

TRANSFER_ENCODINGS = [
    b"Transfer-Encoding : chunked", b"Transfer-Encoding\t: chunked", b" Transfer-Encoding: chunked",
    b"\tTransfer-Encoding: chunked", b"Transfer-Encoding:\tchunked", b"Transfer-Encoding:chunked",
    b"Transfer-Encoding: \x0bchunked", b"Transfer-Encoding: \x0cchunked",
    b"Transfer-Encoding: xchunked", b"Transfer-Encoding: chunked, identity",
    b"Transfer-Encoding: identity, chunked", b"Transfer-Encoding: chunked;q=1",
    b'Transfer-Encoding: "chunked"', b"Transfer-Encoding: CHUNKED",
    b"Transfer-Encoding: chun\r\n ked", b"Transfer-Encoding:\r\n chunked",
    b"X: y\rTransfer-Encoding: chunked", b"X: y\nTransfer-Encoding: chunked",
    b"X: y\0\r\nTransfer-Encoding: chunked", b"Transfer_Encoding: chunked",
    b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity", b"Transfer-Encoding: identity",
    b"Transfer-Encoding: gzip, chunked", b"Transfer-Encoding: chunked\xa0",
    b"TE: chunked\r\nTransfer-Encoding: ,chunked",
    b"Connection: Transfer-Encoding\r\nTransfer-Encoding: chunked",
]  # fmt: skip

LENGTHS = [
    b"Content-Length: 0, 5", b"Content-Length: +0", b"Content-Length: -1", b"Content-Length: 0x0",
    b"Content-Length: 0 0", b"Content-Length: 00", b"Content-Length : 0", b"Content-Length: 1e1",
    b"Content-Length: \xd9\xa0", b"Content-Length: 18446744073709551616",
    b"Content-Length:\r\n 0", b"Content_Length: 5",
    b"Connection: Content-Length\r\nContent-Length: 5",
]  # fmt: skip

CHUNKS = [
    b"0;\nx\r\n\r\n", b"0x0\r\n\r\n", b"5\r\nhello0\r\n\r\n", b"0\r\nContent-Length: 99\r\n\r\n",
    b"10000000000000000\r\n", b"-0\r\n\r\n", b"0 \r\n\r\n", b"0\n\n",
]  # fmt: skip


def requests(path: bytes) -> list[bytes]:
    """Return the requests for a path, each with another one that may be seen in its body."""
    hidden = b"GET %s HTTP/1.1\r\n%s\r\n" % (path, HOST)
    ended = b"0\r\n\r\n" + hidden
    length = b"Content-Length: %d" % len(ended)

    def post(*lines: bytes, body: bytes = ended, first: bytes = b"POST %s HTTP/1.1") -> bytes:
        return b"\r\n".join([first % path, HOST.strip(), *lines, b"", body])

    return [
        post(length, CHUNKED), post(CHUNKED, length), post(b"Content-Length: 5", CHUNKED),
        post(CHUNKED, b"Content-Length: 0"), post(b"Content-Length: 0", length),
        post(length, b"Content-Length: 0"), *(post(length, line) for line in TRANSFER_ENCODINGS),
        *map(post, LENGTHS), *(post(CHUNKED, body=chunk + hidden) for chunk in CHUNKS),
        b"GET %s HTTP/1.1\n%s\n" % (path, HOST.replace(b"\r", b"")) + hidden,
        post(length, CHUNKED, first=b"POST %s HTTP/1.0"),
        post(length, b"Host: other.example"),
        post(length, first=b"POST http://other.example%s HTTP/1.1"),
        b"GET %s\r\n" % path + hidden,
    ]  # fmt: skip


async def answers(port: int, trust: ssl.SSLContext, path: bytes, request: bytes) -> int:
    """Return how many requests were answered with 200."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trust)
    writer.write(request + b"GET %s HTTP/1.1\r\n%sConnection: close\r\n\r\n" % (path, HOST))
    try:
        return (await reader.read()).count(b"HTTP/1.1 200 ")
    finally:
        writer.close()


async def test_proxy_and_service_see_the_same_requests(tmp_path: Path) -> None:
    seen: Counter[bytes] = Counter()

    async def note(scope: Any, receive: Any, send: Any) -> None:
        seen[scope["raw_path"]] += 1
        while (await receive()).get("more_body"):
            pass
        headers = [(b"content-length", b"0")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body"})

    authority = Authority(tmp_path)
    trust = ssl.create_default_context(cafile=str(authority.path))
    paths = [b"/%02d" % number for number in range(len(requests(b"")))]
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = HttpServer(note, HttpLimits(connections_max=200))
        serving = asyncio.create_task(server.serve(listening))
        async with proxied(tmp_path, authority, listening.getsockname()[1]) as port:
            asked = [
                answers(port, trust, path, requests(path)[number])
                for number, path in enumerate(paths)
            ]
            answered = await in_time(asyncio.gather(*asked))
        server.stop()
        await serving
    assert len(paths) == 58
    assert seen == Counter(dict(zip(paths, answered, strict=True)))
