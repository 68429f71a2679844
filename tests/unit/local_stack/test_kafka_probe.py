from __future__ import annotations

import socket
import struct
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from local_stack.kafka import broker_count
from local_stack.process import LOOPBACK, free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def answering() -> Iterator[Callable[[bytes], int]]:
    """Gives the port of a server that reads one request and sends these bytes."""
    threads: list[threading.Thread] = []

    def start(answer: bytes) -> int:
        listener = socket.create_server((LOOPBACK, 0))

        def serve() -> None:
            with listener, listener.accept()[0] as connection:
                (size,) = struct.unpack(">i", connection.recv(4))
                assert len(connection.recv(size)) == size
                with suppress(ConnectionError):  # the probe may have read enough
                    for byte in answer:  # an answer may come in any number of parts
                        connection.sendall(bytes([byte]))

        threads.append(threading.Thread(target=serve))
        threads[-1].start()
        port: int = listener.getsockname()[1]
        return port

    yield start
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("brokers", [0, 1, 3])
def test_broker_count_reads_the_number(answering: Callable[[bytes], int], brokers: int) -> None:
    answer = struct.pack(">iii", 20, 1, brokers) + bytes(12)
    assert broker_count(answering(answer)) == brokers


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"\x00\x00",
        struct.pack(">i", 8),
        struct.pack(">iii", 8, 2, 1),  # the answer to something else
        struct.pack(">iii", 8, 1, -1),
        struct.pack(">i", -5),
        struct.pack(">i", 2**31 - 1),
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
    ],
)
def test_broker_count_with_no_proper_answer_is_zero(
    answering: Callable[[bytes], int], answer: bytes
) -> None:
    assert broker_count(answering(answer)) == 0


def test_broker_count_with_nobody_listening_is_zero() -> None:
    assert broker_count(free_port()) == 0


def test_broker_count_with_a_silent_server_gives_up() -> None:
    with socket.create_server((LOOPBACK, 0)) as listener:
        assert broker_count(listener.getsockname()[1], timeout_s=0.1) == 0
