import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from local_stack import process as processes
from local_stack.errors import StackError
from local_stack.folders import Account

OURSELVES = Account(name="me", user_id=os.geteuid(), group_id=os.getegid(), switched=False)
ENVIRONMENT = {"PATH": os.defpath}


@pytest.fixture
def log(tmp_path: Path) -> Iterator[int]:
    descriptor = os.open(tmp_path / "log", os.O_RDWR | os.O_CREAT)
    yield descriptor
    os.close(descriptor)


def launch(log: int, *command: str) -> processes.ProcessIdentity:
    process = processes.launch(command, log=log, account=OURSELVES, environment=ENVIRONMENT)
    assert process is not None
    return process


def test_process_is_known_by_its_start_time_too() -> None:
    ourselves = processes.identify(os.getpid())
    assert ourselves is not None
    assert processes.is_running(ourselves)
    earlier = msgspec.structs.replace(ourselves, started="before the last boot")
    assert not processes.is_running(earlier)
    assert not processes.send(earlier, signal.SIGKILL)


BUSY = """
import sys, threading
def work():
    while True:
        sum(range(1000))
for _ in range(4):
    threading.Thread(target=work, daemon=True).start()
print("busy", flush=True)
work()
"""


def test_wait_frozen_returns_when_every_thread_stands_still(log: int) -> None:
    process = launch(log, sys.executable, "-c", BUSY)
    try:
        while os.pread(log, 16, 0) != b"busy\n":
            assert processes.is_running(process)
        assert not processes.wait_frozen(process, deadline_s=0)
        for _ in range(50):
            assert processes.send(process, signal.SIGSTOP)
            assert processes.wait_frozen(process, deadline_s=10)
            tasks = list(Path(f"/proc/{process.process_id}/task").iterdir())
            states = [(task / "stat").read_text().rpartition(")")[2].split()[0] for task in tasks]
            assert states == ["T"] * 5
            processes.send(process, signal.SIGCONT)
    finally:
        processes.send(process, signal.SIGKILL)
    assert processes.wait_gone(process, deadline_s=10)
    assert processes.wait_frozen(process, deadline_s=0), "what is gone is not waited for"


def test_launch_hides_the_callers_environment(
    log: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGOPTIONS", "-c fsync=off")
    process = processes.launch(["env"], log=log, account=OURSELVES, environment={"A": "b"})
    if process is not None:
        assert processes.wait_gone(process, deadline_s=10)
    assert (tmp_path / "log").read_text() == "A=b\n"


def test_free_port_can_be_listened_on_and_is_then_not_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    port = processes.free_port()
    assert 1024 < port < 32_768, "below the ports of outgoing connections"
    with socket.create_server((processes.LOOPBACK, port)):
        assert not processes.is_free(port)
    assert processes.is_free(port)
    monkeypatch.setattr(processes, "_CANDIDATES", range(20_000, 20_001))
    with pytest.raises(StackError, match="no free port"):
        processes.free_port(taken=[20_000])
