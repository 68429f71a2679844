"""The common behaviour of servers, shown with a shell script for a server."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from local_stack import process as processes
from local_stack import server as server_module
from local_stack.errors import ServerFailed
from local_stack.folders import Account
from local_stack.process import ProcessIdentity
from local_stack.server import Server

OURSELVES = Account(name="me", user_id=os.geteuid(), group_id=os.getegid(), switched=False)
SERVES = "touch ready; exec sleep 60"


class Script(Server):
    name: ClassVar[str] = "Script"
    stop_signals: ClassVar[tuple[tuple[signal.Signals, float], ...]] = (
        (signal.SIGTERM, 0.3),
        (signal.SIGKILL, 10.0),
    )
    script = SERVES

    def __init__(
        self,
        directory: Path,
        process: ProcessIdentity | None = None,
        on_launch: Callable[[ProcessIdentity], None] | None = None,
    ) -> None:
        super().__init__(directory, OURSELVES, process=process, on_launch=on_launch)

    def prepare(self) -> None:
        (self.directory / "ready").unlink(missing_ok=True)

    def command(self) -> list[str]:
        return ["sh", "-c", f"cd '{self.directory}'; {self.script}"]

    def environment(self) -> dict[str, str]:
        return {"PATH": os.defpath}

    def is_ready(self) -> bool:
        return self.is_running() and (self.directory / "ready").exists()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Script]:
    made = Script(tmp_path)
    yield made
    made.kill()


def test_start_names_the_process_before_it_is_ready(tmp_path: Path) -> None:
    launched: list[ProcessIdentity] = []
    server = Script(tmp_path, on_launch=launched.append)
    server.script = "exec sleep 60"
    with pytest.raises(ServerFailed, match="was not ready within 0 s"):
        server.start(deadline_s=0.2)
    assert launched == [server.process]
    server.kill()


def test_start_of_a_server_that_ends_carries_the_end_of_its_log(server: Script) -> None:
    server.script = "echo first; echo the reason; exit 1"
    with pytest.raises(ServerFailed, match="ended before it was ready") as caught:
        server.start()
    assert caught.value.log_tail == "first\nthe reason"
    assert caught.value.log_path == server.log_path
    assert str(caught.value).endswith("its last line: the reason")
    assert "\n" not in str(caught.value)


def test_stop_of_a_server_that_ignores_the_first_signal_goes_on_to_the_next(
    server: Script,
) -> None:
    server.script = "trap '' TERM; touch ready; while :; do sleep 0.1; done"
    server.start()
    server.stop()
    assert not server.is_running()


def test_freeze_stops_the_children_too(server: Script) -> None:
    server.script = "(while :; do echo beat; sleep 0.02; done) & touch ready; wait"
    server.start()
    assert server.process is not None
    (child,) = processes.children_of(server.process)
    server.freeze()
    assert processes.wait_frozen(child, deadline_s=0.0)
    size = server.log_path.stat().st_size
    server.thaw()
    while server.log_path.stat().st_size == size:
        time.sleep(0.01)
    processes.send(child, signal.SIGKILL)


def test_a_large_log_is_moved_aside_at_the_next_start(
    server: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "_LOG_BYTES_MAX", 10)
    server.log_path.write_text("more than ten bytes\n")
    server.start()
    assert server.log_path.with_suffix(".log.1").read_text() == "more than ten bytes\n"
    assert server.log_tail() == ""
