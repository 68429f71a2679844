"""Asks a Kafka broker whether it serves requests, in 40 bytes and without a client library.

A broker's port accepts connections before the broker is registered; a client that comes then sees a
cluster without brokers. So we ask for the cluster's metadata, as the client would.
"""

from __future__ import annotations

import socket
import struct
from typing import Final

from local_stack.ports import LOOPBACK

_METADATA: Final = 3
_VERSION: Final = 1
"""The first version in which an empty list means "no topics"; brokers from 3.7 to 4.1 speak it."""
_CORRELATION_ID: Final = 1
_CLIENT: Final = b"orderchain"
_REQUEST: Final = struct.pack(
    f">hhih{len(_CLIENT)}si", _METADATA, _VERSION, _CORRELATION_ID, len(_CLIENT), _CLIENT, 0
)
_ANSWER_BYTES_MAX: Final = 1024 * 1024


def broker_count(port: int, timeout_s: float = 2.0) -> int:
    """How many brokers the broker on this port of loopback knows; 0 when it gives no answer."""
    try:
        with socket.create_connection((LOOPBACK, port), timeout=timeout_s) as connection:
            connection.settimeout(timeout_s)
            connection.sendall(struct.pack(">i", len(_REQUEST)) + _REQUEST)
            (size,) = struct.unpack(">i", _read(connection, 4))
            if not 8 <= size <= _ANSWER_BYTES_MAX:
                return 0
            correlation_id, brokers = struct.unpack(">ii", _read(connection, 8))
    except OSError:
        return 0
    return max(0, brokers) if correlation_id == _CORRELATION_ID else 0


def _read(connection: socket.socket, size: int) -> bytes:
    received = b""
    while len(received) < size:
        part = connection.recv(size - len(received))
        if not part:
            raise ConnectionResetError("the broker closed the connection")
        received += part
    return received
