"""A broker that says of itself what Kafka 3.6.2 says, on loopback."""

import base64
import socketserver
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from aiokafka.protocol.admin import ApiVersionResponse_v0, ApiVersionResponse_v2
from aiokafka.protocol.metadata import MetadataResponse_v5

METADATA, VERSIONS = 3, 18
FETCH_3_6, METADATA_MAX = 15, 5

ANSWER = base64.b64decode(
    "AAA4AAAAAAAJAAABAAAADwAAAgAAAAgAAAMAAAAMAAAIAAAACAAACQAAAAgAAAoAAAAEAAALAAAACQAADAAAAAQAAA0A"
    "AAAFAAAOAAAABQAADwAAAAUAABAAAAAEAAARAAAAAQAAEgAAAAMAABMAAAAHAAAUAAAABgAAFQAAAAIAABYAAAAEAAAX"
    "AAAABAAAGAAAAAQAABkAAAADAAAaAAAAAwAAGwAAAAEAABwAAAADAAAdAAAAAwAAHgAAAAMAAB8AAAADAAAgAAAABAAA"
    "IQAAAAIAACIAAAACAAAjAAAABAAAJAAAAAIAACUAAAADAAAmAAAAAwAAJwAAAAIAACgAAAACAAApAAAAAwAAKgAAAAIA"
    "ACsAAAACAAAsAAAAAQAALQAAAAAAAC4AAAAAAAAvAAAAAAAAMAAAAAEAADEAAAABAAAyAAAAAAAAMwAAAAAAADcAAAAB"
    "AAA5AAAAAQAAPAAAAAAAAD0AAAAAAABAAAAAAAAAQQAAAAAAAEIAAAAAAAAAAAADABcCEW1ldGFkYXRhLnZlcnNpb24A"
    "AQAOAAEIAAAAAAAAAA4CFwIRbWV0YWRhdGEudmVyc2lvbgAOAA4A"
)
"""What a real broker of 3.6.2 answered to ApiVersions version 3, after the correlation id."""


class _Broker(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        while size := self.rfile.read(4):
            request = self.rfile.read(int.from_bytes(size, "big"))
            key, version, correlation_id = struct.unpack_from(">hhi", request)
            answer = struct.pack(">i", correlation_id) + self._answer(key, version)
            self.wfile.write(struct.pack(">i", len(answer)) + answer)

    def _answer(self, key: int, version: int) -> bytes:
        if (key, version) == (VERSIONS, 3):
            return ANSWER
        if key == VERSIONS:
            known = [(1, 0, FETCH_3_6), (METADATA, 0, METADATA_MAX), (VERSIONS, 0, 3)]
            first = ApiVersionResponse_v0(0, known)
            return bytes((first if version == 0 else ApiVersionResponse_v2(0, known, 0)).encode())
        assert key == METADATA, f"a request that an old broker must not get: {key}"
        brokers = [(1, *self.request.getsockname(), None)]
        return bytes(MetadataResponse_v5(0, brokers, "cluster", 1, []).encode())


@contextmanager
def old_kafka() -> Iterator[str]:
    """Run the broker, and yield its address."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Broker) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
