from __future__ import annotations

import socket

import pytest

from local_stack import process
from local_stack.errors import StackError


def test_free_port_can_be_listened_on_and_is_then_not_free() -> None:
    port = process.free_port()
    with socket.create_server((process.LOOPBACK, port)):
        assert not process.is_free(port)
    assert process.is_free(port)


def test_free_port_lies_below_the_ports_of_outgoing_connections() -> None:
    assert all(1024 < process.free_port() < 32_768 for _ in range(20))


def test_free_port_with_every_candidate_taken_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_CANDIDATES", range(20_000, 20_001))
    with pytest.raises(StackError, match="no free port"):
        process.free_port(taken=[20_000])
