from __future__ import annotations

import socket
import struct
import threading
from contextlib import suppress

import pytest

from local_stack.kafka import broker_count
from local_stack.process import LOOPBACK, free_port


def count_of(answer: bytes) -> int:
    """What a probe of a server finds that reads one request and sends this answer."""
    listener = socket.create_server((LOOPBACK, 0))

    def serve() -> None:
        with listener, listener.accept()[0] as connection:
            (size,) = struct.unpack(">i", connection.recv(4))
            assert len(connection.recv(size)) == size
            with suppress(ConnectionError):  # the probe may have read enough
                for byte in answer:  # an answer may come in any number of parts
                    connection.sendall(bytes([byte]))

    thread = threading.Thread(target=serve)
    thread.start()
    count = broker_count(listener.getsockname()[1])
    thread.join()
    return count


@pytest.mark.parametrize(
    ("answer", "brokers"),
    [
        (struct.pack(">iii", 20, 1, 0) + bytes(12), 0),
        (struct.pack(">iii", 20, 1, 3) + bytes(12), 3),
        (b"", 0),
        (b"\x00\x00", 0),
        (struct.pack(">i", 8), 0),
        (struct.pack(">iii", 8, 2, 1), 0),  # the answer to something else
        (struct.pack(">iii", 8, 1, -1), 0),
        (struct.pack(">i", -5), 0),
        (struct.pack(">i", 2**31 - 1), 0),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", 0),
    ],
)
def test_broker_count_reads_the_number_and_takes_anything_else_for_none(
    answer: bytes, brokers: int
) -> None:
    assert count_of(answer) == brokers


def test_broker_count_with_nobody_there_or_a_silent_server_is_zero() -> None:
    assert broker_count(free_port()) == 0
    with socket.create_server((LOOPBACK, 0)) as listener:
        assert broker_count(listener.getsockname()[1], timeout_s=0.1) == 0
