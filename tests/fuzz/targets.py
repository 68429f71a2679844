"""One function for each reader of bytes that strangers may have written.

It returns, whatever the bytes are: only designed errors come out of a reader, what it took is
written again and read as the same, and the compiled form makes the bytes that Python makes.
Memory and time are bounded by the caller.
"""

from __future__ import annotations

import asyncio
import csv
import io
import re
import socket
import struct
import tempfile
from contextlib import closing, suppress
from datetime import UTC, datetime
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar
from uuid import UUID

import msgspec

from chain_kernel import speed
from chain_kernel.clients.http_server import HttpLimits, HttpServer
from chain_kernel.errors import FrameError, InputError, SourceBroken
from chain_kernel.files import journal_lines, written_row
from chain_kernel.frame import (
    HEADER_BYTES,
    MAGIC,
    VERSION,
    FrameHeader,
    decode_body,
    decode_header,
    decode_linked_body,
    encode_frame,
    is_signed,
)
from chain_kernel.limits import ID_MAX
from chain_kernel.model import Event
from chain_kernel.seal import Columns, genesis_seal
from chain_verifier.archive.archived_rows import ArchivedRows
from chain_verifier.archive.manifest import (
    ArchivePart,
    Manifest,
    StoredFile,
    chain_folder,
    load_manifest,
    store_manifest,
)
from chain_verifier.archive.part_files import verify_archive
from chain_verifier.config import JournalSource, ParquetSource, VerifyRequest
from chain_verifier.local.verify import verify_locally
from chainctl.commands.chain.journal import Journal
from sequencer.intake.order_file import FileOptions, OrderFile
from sequencer.order import columns_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from sequencer.order import Order

    Target = Callable[[bytes], None]

_T = TypeVar("_T")

CHAIN_ID: Final = 1
DATABASE_ID: Final = UUID(int=7)
KEY: Final = bytes(range(32))
_FOLDER: Final = tempfile.TemporaryDirectory(prefix="orderchain-fuzz-")


def _written(name: str, data: bytes) -> Path:
    path = Path(_FOLDER.name, name)
    path.write_bytes(data)
    return path


# -- frames ----------------------------------------------------------------------------------------


def frame(data: bytes) -> None:
    """Read a record as it is, and with a magic, version and lengths that let the rest count."""
    _frame(data)
    if len(data) >= HEADER_BYTES:
        fitted = bytearray(data)
        struct.pack_into(">4sB", fitted, 0, MAGIC, VERSION)
        struct.pack_into(">H", fitted, 6, HEADER_BYTES)
        struct.pack_into(">I", fitted, 16, len(data) - HEADER_BYTES)
        _frame(bytes(fitted))


def _frame(record: bytes) -> None:
    linked = None
    try:
        header = decode_header(record)
        is_signed(record, KEY)
        if header.is_heartbeat:
            assert decode_header(encode_frame(header, (), KEY)) == header
            return
        with suppress(FrameError):
            linked = decode_linked_body(record, header)
        events = decode_body(record, header)
    except FrameError:
        assert linked is None
        return
    assert linked in (None, events)
    _require_same_again(header, events)


def _require_same_again(header: FrameHeader, events: list[Event]) -> None:
    assert all(1 <= event.id <= ID_MAX and 0 <= event.pid <= ID_MAX for event in events)
    again = encode_frame(header, events, KEY)
    assert is_signed(again, KEY)
    assert decode_header(again) == header
    assert decode_body(again, header) == events
    columns = Columns(*map(list, zip(*map(msgspec.structs.astuple, events), strict=True)))
    assert _in_both_forms(lambda: encode_frame(header, columns, KEY)) == again


def _in_both_forms(made: Callable[[], _T]) -> _T:
    """Return what Python makes, once the compiled module, where it is, has made the same."""
    compiled = made()
    before, speed.native = speed.native, None
    try:
        assert made() == compiled
    finally:
        speed.native = before
    return compiled


# -- files -----------------------------------------------------------------------------------------


def journal(data: bytes) -> None:
    """Verify a journal, and go on writing it as a receiver does after a crash."""
    path = _written("journal", data)
    _verify(JournalSource(path=str(path)))
    for line in data.split(b"\n"):
        if (row := written_row(line)) is not None:
            event = Event(row.id, row.pid, row.key, row.event_time_ns, b"")
            again = journal_lines(row.chain_id, [event], [row.payload])
            assert written_row(again.removesuffix(b"\n")) == row
    added = journal_lines(CHAIN_ID, [Event(9, 8, "k", 0, b"p")], [b"p"])
    try:
        with Journal(path, CHAIN_ID) as opened:
            opened.start()
            opened.append([Event(9, 8, "k", 0, b"p")])
    except InputError:
        assert path.read_bytes() == data
    else:
        assert path.read_bytes() == data[: data.rfind(b"\n") + 1] + added


def _verify(source: JournalSource | ParquetSource) -> None:
    with suppress(InputError, SourceBroken):
        verify_locally(VerifyRequest(chain_id=CHAIN_ID, sources=(source,), key_window_rows=9))


def csv_orders(data: bytes) -> None:
    """Read the orders of a CSV file."""
    _orders(_written("orders.csv", data))


def json_orders(data: bytes) -> None:
    """Read the orders of a JSON Lines file."""
    _orders(_written("orders.jsonl", data))


def _orders(path: Path) -> None:
    orders, fault = _read(path, 1_000)
    assert _read(path, 1) == (orders, fault)
    if not orders:
        return
    _in_both_forms(lambda: columns_of(orders))
    values = [msgspec.msgpack.decode(order.payload, type=dict[str, str]) for order in orders]
    lines = b"".join(msgspec.json.encode(each) + b"\n" for each in values)
    assert _read(_written("again.jsonl", lines), 1_000) == (_renamed(orders, "again.jsonl"), None)
    names = list(values[0])
    rows = [list(each.values()) for each in values]
    if names in rows or any("\0" in text for row in [names, *rows] for text in row):
        return  # a header that comes again is skipped; JSON may escape a NUL
    text = io.StringIO(newline="")
    csv.writer(text, quoting=csv.QUOTE_ALL).writerows([names, *rows])
    again = _written("again.csv", text.getvalue().encode())
    found = _read(again, 1_000, columns=tuple(names), delimiter=",")
    assert found == (_renamed(orders, "again.csv"), None)


def _read(path: Path, limit: int, **options: Any) -> tuple[list[Order], str | None]:
    found: list[Order] = []
    try:
        with OrderFile(path, FileOptions(header_again="skip", **options)) as opened:
            while (portion := opened.read(limit)) is not None:
                found += portion.orders
    except InputError as error:
        return found, str(error)
    return found, None


def _renamed(orders: list[Order], name: str) -> list[Order]:
    return [
        msgspec.structs.replace(order, key=f"{name}#{number}")
        for number, order in enumerate(orders, 1)
    ]


def manifest(data: bytes) -> None:
    """Load, verify and store the manifest of an archive whose files are missing."""
    archive = Path(_FOLDER.name, "archive")
    folder = chain_folder(archive, CHAIN_ID)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "_manifest.json").write_bytes(data)
    try:
        loaded = load_manifest(archive, CHAIN_ID)
        assert loaded is not None
        store_manifest(archive, loaded)
        assert load_manifest(archive, CHAIN_ID) == loaded
        assert not loaded.parts or verify_archive(archive, CHAIN_ID).fault is not None
    except InputError:
        return


def parquet(data: bytes) -> None:
    """Read rows from Parquet, as it is and with a footer that begins within the file."""
    _parquet(data)
    if len(data) > 12:
        size = struct.unpack_from("<I", data, len(data) - 8)[0] % (len(data) - 11)
        _parquet(b"PAR1" + data[4:-8] + struct.pack("<I", size) + b"PAR1")


def _parquet(data: bytes) -> None:
    path = _written("rows.parquet", data)
    _verify(ParquetSource(path=str(path)))
    archive = Path(_FOLDER.name, "parquet")
    stored = [
        _stored(archive, f"{kind}-0-9.parquet", data) for kind in ("rows", "_batches/batches")
    ]
    part = ArchivePart(
        after_id=0, first_id=1, last_id=9, row_count=9, batch_count=1, seal_after="00" * 32,
        seal_before=genesis_seal(DATABASE_ID, CHAIN_ID).hex(), rows=stored[0], batches=stored[1],
    )  # fmt: skip
    store_manifest(
        archive, Manifest(chain_id=CHAIN_ID, database_id=str(DATABASE_ID), parts=(part,))
    )
    assert verify_archive(archive, CHAIN_ID).fault is not None
    rows = ArchivedRows(archive, CHAIN_ID)
    for asked in (rows.row_at_or_before(9), rows.row_before_time(datetime.now(UTC))):
        with suppress(InputError):
            _loop().run_until_complete(asked)


def _stored(archive: Path, name: str, data: bytes) -> StoredFile:
    path = chain_folder(archive, CHAIN_ID) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return StoredFile(name=name, bytes=len(data), sha256=sha256(data).hexdigest())


# -- HTTP ------------------------------------------------------------------------------------------


def http(data: bytes) -> None:
    """Send bytes to the server, and what it took of them once more."""
    requests, statuses = _http().sent(data)
    assert statuses <= {b"100", b"200", b"400", b"411", b"431"}
    assert _http().sent(b"".join(map(_as_sent, requests)))[0] == requests


class _Request(NamedTuple):
    first: bytes
    headers: list[tuple[bytes, bytes]]
    body: bytes


def _as_sent(request: _Request) -> bytes:
    lines = [request.first, *(b"%s: %s" % header for header in request.headers)]
    return b"\r\n".join([*lines, b"", request.body])


class _Http:
    """A server, and the requests that have reached its application."""

    def __init__(self) -> None:
        self._requests: list[_Request] = []
        self._path = str(Path(_FOLDER.name, "http"))
        self._server = HttpServer(self._app, HttpLimits(connections_max=9))
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(self._path)
        self._task = _loop().create_task(self._server.serve(listening))

    def sent(self, data: bytes) -> tuple[list[_Request], set[bytes]]:
        """Send on a connection of its own; return requests, and the statuses of all answers."""
        self._requests = []
        answer = _loop().run_until_complete(self._answer(data))
        return self._requests, set(re.findall(rb"HTTP/1.1 ([0-9]{3}) ", answer))

    async def _answer(self, data: bytes) -> bytes:
        reader, writer = await asyncio.open_unix_connection(self._path)
        with closing(writer), suppress(ConnectionError):
            writer.write(data)
            writer.write_eof()
            return await reader.read()
        return b""

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body, more = body + message["body"], message["more_body"]
        query = b"?" + scope["query_string"] if scope["query_string"] else b""
        version = scope["http_version"].encode()
        first = b"%s %s HTTP/%s" % (scope["method"].encode(), scope["raw_path"] + query, version)
        self._requests.append(_Request(first, scope["headers"], body))
        headers = [(b"content-length", b"0")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b""})


@cache
def _loop() -> asyncio.AbstractEventLoop:
    return asyncio.new_event_loop()


@cache
def _http() -> _Http:
    return _Http()


TARGETS: Final[dict[str, Target]] = {
    target.__name__: target
    for target in (frame, journal, csv_orders, json_orders, manifest, parquet, http)
}
