from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from local_stack import process as processes
from local_stack.folders import Account

if TYPE_CHECKING:
    from collections.abc import Iterator

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


def test_identify_of_ourselves_is_running() -> None:
    ourselves = processes.identify(os.getpid())
    assert ourselves is not None
    assert processes.is_running(ourselves)


def test_is_running_with_another_start_time_is_false_and_gets_no_signal() -> None:
    ourselves = processes.identify(os.getpid())
    assert ourselves is not None
    earlier = msgspec.structs.replace(ourselves, started="before the last boot")
    assert not processes.is_running(earlier)
    assert not processes.send(earlier, signal.SIGKILL)


def test_identify_of_a_zombie_is_none() -> None:
    child = subprocess.Popen(["true"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    try:
        assert processes.identify(child.pid) is None
    finally:
        child.wait()


def test_identify_by_ps_agrees_with_itself(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    try:
        subprocess.run(["ps"], check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("there is no ps here")
    monkeypatch.setattr(processes, "_BOOT_ID", tmp_path / "not linux")
    ourselves = processes.identify(os.getpid())
    assert ourselves is not None
    assert processes.is_running(ourselves)
    assert processes.identify(2**22 + 1) is None


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


@pytest.mark.skipif(sys.platform != "linux", reason="reads the threads' states from /proc")
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


def test_launch_runs_in_a_session_of_its_own_and_is_reaped(log: int) -> None:
    process = launch(log, "sleep", "60")
    assert os.getsid(process.process_id) == process.process_id
    assert processes.send(process, signal.SIGKILL)
    assert processes.wait_gone(process, deadline_s=10)
    assert not processes.send(process, signal.SIGTERM)


def test_launch_with_a_missing_program_raises(log: int) -> None:
    with pytest.raises(FileNotFoundError):
        launch(log, "/nonexistent/program")


def test_launch_hides_the_callers_environment(
    log: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGOPTIONS", "-c fsync=off")
    process = processes.launch(["env"], log=log, account=OURSELVES, environment={"A": "b"})
    if process is not None:
        assert processes.wait_gone(process, deadline_s=10)
    assert (tmp_path / "log").read_text() == "A=b\n"


def test_wait_gone_with_a_process_that_stays_is_false(log: int) -> None:
    process = launch(log, "sleep", "60")
    assert not processes.wait_gone(process, deadline_s=0.05)
    processes.send(process, signal.SIGKILL)
    assert processes.wait_gone(process, deadline_s=10)


def test_children_of_finds_direct_children(log: int, tmp_path: Path) -> None:
    process = launch(log, "sh", "-c", "sleep 60 & echo $!; wait")
    text = ""
    while not text.endswith("\n"):
        text = (tmp_path / "log").read_text()
    children = processes.children_of(process)
    assert [child.process_id for child in children] == [int(text)]
    for one in (process, *children):
        processes.send(one, signal.SIGKILL)
        assert processes.wait_gone(one, deadline_s=10)
    assert processes.children_of(process) == []
