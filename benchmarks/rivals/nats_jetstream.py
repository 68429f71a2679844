"""NATS JetStream, file storage, every message synced: when the server's program is there."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.load import Stored
from benchmarks.rivals.records import decode_event, encode_event
from benchmarks.rivals.rival import Producer, Receiver, Rival, Tally
from local_stack.ports import LOOPBACK, free_port

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.chains import Site
    from benchmarks.load import Load, Venue
    from sequencer import Order

PROGRAM = "nats-server"
_STREAM = "rival"
_START_SECONDS = 10.0
_MESSAGES_WAITING_MAX = 4_000


async def _connected(url: str) -> Any:  # noqa: ANN401 - it has no types
    """Return a client, once the server takes connections."""
    import nats

    async with asyncio.timeout(_START_SECONDS):
        while True:
            with suppress(OSError, nats.errors.Error):
                return await nats.connect(url, allow_reconnect=False, error_cb=_heard)
            await asyncio.sleep(0.05)


async def _heard(error: Exception) -> None:
    """Ignore it: a refused connection is retried, and the calls themselves raise what matters."""


class _JetStreamProducer(Producer):
    """Publishes a batch at once and awaits its acknowledgements."""

    _stream: Any

    async def open(self) -> None:
        """Connect."""
        client = await _connected(str(self.venue.place["url"]))
        self.push_async_callback(client.close)
        self._stream = client.jetstream(publish_async_max_pending=_MESSAGES_WAITING_MAX)

    async def send(self, batches: Sequence[list[Order]]) -> None:
        """Publish batch after batch."""
        publish = self._stream.publish_async
        for batch in batches:
            acks = [await publish(_STREAM, encode_event(event)) for event in self.numbered(batch)]
            await asyncio.gather(*acks)

    async def settle(self) -> None:
        """Every acknowledgement was awaited."""


class _JetStreamReceiver(Receiver):
    """An ordered consumer."""

    stream: Any
    _messages: Any

    async def open(self) -> None:
        """Subscribe."""
        client = await _connected(str(self.venue.place["url"]))
        self.push_async_callback(client.close)
        self.stream = client.jetstream()
        self._messages = await self.stream.subscribe(
            _STREAM, stream=_STREAM, ordered_consumer=True, pending_msgs_limit=-1,
            pending_bytes_limit=-1,
        )  # fmt: skip

    async def receive(self, until_rows: int) -> None:
        """Take message after message."""
        tally, following = self.tally, self._messages.next_msg
        while tally.rows < until_rows:
            message = await following(timeout=60)
            tally.take((decode_event(message.data),))


class NatsJetStream(Rival):
    """One message per order; the acknowledgements of a batch are awaited together."""

    title = "NATS JetStream"
    ack = "the server's file, synced always; no database"
    producer = _JetStreamProducer
    receiver = _JetStreamReceiver

    def __init__(self) -> None:
        self._server: subprocess.Popen[bytes] | None = None

    def absence(self) -> str | None:
        """Return what is missing."""
        if shutil.which(PROGRAM) is None:
            return f"there is no program {PROGRAM} here"
        try:
            import nats  # noqa: F401 - whether it is there
        except ImportError:
            return "nats-py is not installed (pip install 'orderchain[bench]')"
        return None

    async def prepare(self, site: Site, load: Load) -> dict[str, str | int]:
        """Start a server of this run, on the disk of the stack, and make its stream."""
        folder = Path(tempfile.mkdtemp(prefix="nats-", dir=site.directory or None))
        url = f"{LOOPBACK}:{free_port()}"
        settings = folder / "nats.conf"
        settings.write_text(
            f"listen: {url}\n"
            f'jetstream {{ store_dir: "{folder / "store"}", sync_interval: always }}\n'
        )
        self._server = subprocess.Popen(  # noqa: ASYNC220 - it outlives this call
            [PROGRAM, "-c", settings], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        client = await _connected(f"nats://{url}")
        await client.jetstream().add_stream(name=_STREAM, subjects=[_STREAM], storage="file")
        await client.close()
        return {"url": f"nats://{url}", "folder": str(folder)}

    async def stored(self, venue: Venue) -> Stored:
        """Reread the stream from its beginning."""
        tally = Tally()
        async with _JetStreamReceiver(venue, tally) as receiver:
            info = await receiver.stream.stream_info(_STREAM)
            await receiver.receive(info.state.messages)
        return Stored(rows=tally.rows, last_id=tally.last_id)

    async def clean_up(self, venue: Venue) -> None:
        """Stop the server and remove its files."""
        if self._server is not None:
            self._server.kill()
            await asyncio.to_thread(self._server.wait)
        shutil.rmtree(str(venue.place["folder"]), ignore_errors=True)
