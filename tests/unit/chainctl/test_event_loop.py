"""What a service reports to systemd, and when."""

import asyncio
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from chainctl.event_loop import report_ready, run_async
from chainctl.exits import Terminated


@pytest.fixture(params=["in a folder", "abstract"])
def systemd(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[socket.socket]:
    """The socket that systemd would read."""
    is_abstract = request.param == "abstract"
    address = f"@orderchain-{os.getpid()}" if is_abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind("\0" + address[1:] if is_abstract else address)
        listening.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", address)
        monkeypatch.delenv("WATCHDOG_USEC", raising=False)
        monkeypatch.delenv("WATCHDOG_PID", raising=False)
        yield listening


def received(systemd: socket.socket) -> list[str]:
    found = []
    while True:
        try:
            found.append(systemd.recv(4096).decode())
        except BlockingIOError:
            return found


async def serve_until_terminated() -> None:
    report_ready("serves")
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.Event().wait()


def test_service_reports_that_it_is_ready_and_that_it_stops(systemd: socket.socket) -> None:
    with pytest.raises(Terminated):
        run_async(serve_until_terminated())
    assert received(systemd) == ["READY=1\nSTATUS=serves", "STOPPING=1"]


def test_watchdog_with_an_interval_is_fed_while_the_service_runs(
    systemd: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "2000")
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))

    async def serve() -> int:
        fed = 0
        while fed < 3:
            fed += received(systemd).count("WATCHDOG=1")
            await asyncio.sleep(0)
        return fed

    assert run_async(serve()) >= 3


@pytest.mark.parametrize(("interval", "of_another"), [("2000", 1), ("\u0662", 0), ("", 0)])
def test_watchdog_of_another_process_or_without_a_number_is_not_fed(
    systemd: socket.socket, monkeypatch: pytest.MonkeyPatch, interval: str, of_another: int
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", interval)
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid() + of_another))
    run_async(asyncio.sleep(0))
    assert received(systemd) == []


@pytest.mark.parametrize("address", ["", "/no/such/socket"])
def test_service_without_a_supervisor_that_listens_runs_all_the_same(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", address)

    async def serve() -> str:
        report_ready("serves")
        return "served"

    assert run_async(serve()) == "served"
