"""The process that serves `--http`: what it shows of the one that works, and how long it lives."""

import asyncio
import os
import re
import resource
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from chain_kernel.monitoring import Sample
from chainctl import monitor_reporting
from chainctl.monitor_server import Address, Watch, watched, watched_beside
from tests.deadlines import Deadline
from tests.integration.chainctl.conftest import Start
from tests.integration.chainctl.monitor_pages import (
    WORKS,
    get,
    memory_of,
    serving_for,
    stranger_at,
    until_shown,
)

ANYWHERE = Address("127.0.0.1", 0)


class Part:
    """A part whose looks can fail."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.labels = {"of": "x"}

    def samples(self) -> list[Sample]:
        if self.error is not None:
            raise self.error
        return [Sample("orderchain_looks_total", "counter", True, "Looks.", self.labels)]

    def why_not_ready(self) -> str | None:
        return None


@pytest.fixture
def watch(capsys: pytest.CaptureFixture[str]) -> Iterator[Watch]:
    with watched_beside(ANYWHERE) as watch:
        yield watch


@pytest.fixture
def address(capsys: pytest.CaptureFixture[str], watch: Watch) -> str:
    return capsys.readouterr().err.split()[-1]


def test_process_that_is_killed_is_started_again_at_the_same_port(
    watch: Watch, address: str, caplog: pytest.LogCaptureFixture
) -> None:
    watch.add(Part())
    until_shown(f"{address}/readyz", 200)
    first = serving_for(os.getpid())
    os.kill(first, signal.SIGKILL)
    serving_for(os.getpid(), but=first)
    assert "orderchain_looks_total" in until_shown(f"{address}/metrics", 200)
    until_shown(f"{address}/readyz", 200)
    (line,) = caplog.messages
    assert line.endswith("was ended by SIGKILL; it is started again in 1 s")


def test_process_that_takes_nothing_is_replaced(
    address: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(monitor_reporting, "_REPORT_SECONDS", 0.0)
    monkeypatch.setattr(monitor_reporting, "_STOP_SECONDS", 0.1)
    until_shown(f"{address}/livez", 200)
    first = serving_for(os.getpid())
    os.kill(first, signal.SIGSTOP)
    serving_for(os.getpid(), but=first)
    until_shown(f"{address}/livez", 200)
    assert "took nothing for 5 s" in caplog.text


@pytest.mark.merge
def test_process_whose_memory_is_at_its_bound_is_started_again(
    watch: Watch, address: str, caplog: pytest.LogCaptureFixture
) -> None:
    until_shown(f"{address}/livez", 200)
    first = serving_for(os.getpid())
    bound = memory_of(first, "VmSize") + 2**24  # at its own, this process would take a gigabyte
    resource.prlimit(first, resource.RLIMIT_AS, (bound, bound))
    part = Part()
    part.labels = {"of": "x" * 2**25}
    watch.add(part)
    serving_for(os.getpid(), but=first)
    part.labels = {"of": "x"}
    assert "orderchain_looks_total" in until_shown(f"{address}/metrics", 200)
    assert "MemoryError; it is started again in 1 s" in caplog.messages[0]


def test_process_that_fails_says_why_and_starts_less_and_less_often(
    address: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    until_shown(f"{address}/livez", 200)
    (tmp_path / "msgspec.py").write_text("raise RuntimeError('is broken')")
    monkeypatch.syspath_prepend(tmp_path)
    os.kill(serving_for(os.getpid()), signal.SIGKILL)
    bound = Deadline()
    while len(caplog.messages) < 3:
        assert bound.left() > 0
        time.sleep(0.02)
    assert "ended with 1: RuntimeError: is broken; it" in caplog.messages[1]
    assert [line.rpartition(" in ")[2] for line in caplog.messages[:3]] == ["1 s", "2 s", "4 s"]


def test_process_has_bounds_no_login_and_no_module_of_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CHAINCTL_DATABASE", "postgresql://u:secret@h/d")
    for name in ("json", "chainctl", "asyncio"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(77)")
    monkeypatch.chdir(tmp_path)
    with watched_beside(ANYWHERE):
        address = capsys.readouterr().err.split()[-1]
        until_shown(f"{address}/readyz", 503, "not started yet")
        place = Path(f"/proc/{serving_for(os.getpid())}")
        assert b"secret" not in (place / "environ").read_bytes()
        bounds = [line.split() for line in (place / "limits").read_text().splitlines()]
        assert ["Max", "address", "space", "536870912", "536870912", "bytes"] in bounds
        assert ["Max", "open", "files", "1024", "1024", "files"] in bounds
        # Where both share a bound of memory, it is the one that the kernel kills.
        assert (place / "oom_score_adj").read_text() == "1000\n"


def test_process_serves_whatever_a_terminal_sends_and_its_log_stays_empty(
    address: str, caplog: pytest.LogCaptureFixture
) -> None:
    until_shown(f"{address}/livez", 200)
    serving = serving_for(os.getpid())
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(serving, number)
    assert get(f"{address}/livez")[0] == 200
    assert serving_for(os.getpid()) == serving
    assert not caplog.messages


def test_look_that_fails_is_said_and_the_next_one_is_shown(
    watch: Watch, address: str, caplog: pytest.LogCaptureFixture
) -> None:
    part = Part()
    watch.add(part)
    until_shown(f"{address}/readyz", 200)
    part.error = ValueError("no count")
    line = "a look at the parts has failed: no count"
    assert until_shown(f"{address}/readyz", 503) == f"{line}\n"
    assert get(f"{address}/livez")[0] == 200
    assert "orderchain_ready 0.0" in get(f"{address}/metrics")[1]
    part.error = None
    until_shown(f"{address}/readyz", 200)
    until_shown(f"{address}/metrics", 200, "orderchain_looks_total")
    assert caplog.messages[0] == line


def test_process_that_cannot_show_a_report_says_so(
    watch: Watch, address: str, caplog: pytest.LogCaptureFixture
) -> None:
    part = Part()
    part.labels = {"of": 7}  # type: ignore[dict-item] # that is the fault
    watch.add(part)
    until_shown(f"{address}/readyz", 200)
    until_shown(f"{address}/metrics", 500)
    bound = Deadline()
    while "serves metrics and health says: msgspec.ValidationError" not in caplog.text:
        assert bound.left() > 0, caplog.text
        time.sleep(0.02)


SANDBOXED = ("setpriv", "--no-new-privs", "prlimit", "--nofile=4096", "--core=0")
DENY_WRITE_EXECUTE = """
import ctypes
ctypes.CDLL(None).prctl(65, 1, 0, 0, 0)  # Linux 6.3
"""


def test_process_starts_in_the_sandbox_of_the_units(start: Start) -> None:
    """What can be had of it without systemd; the command's children inherit it."""
    work = start(script=DENY_WRITE_EXECUTE + WORKS, within=SANDBOXED, stdin=-1)
    assert work.stderr is not None
    address = work.stderr.readline().split()[-1]
    until_shown(f"{address}/livez", 200)
    assert "orderchain_ready" in until_shown(f"{address}/metrics", 200)
    status = Path(f"/proc/{serving_for(work.pid)}/status").read_text()
    assert "NoNewPrivs:\t1" in status


@pytest.mark.merge
def test_request_that_comes_after_a_crowd_has_connected_is_answered(address: str) -> None:
    """In 50 ms a crowd of 7,000 a second opens 350 connections, and goes on."""
    until_shown(f"{address}/livez", 200)
    with ExitStack() as crowd:
        probe, *_, last = [crowd.enter_context(stranger_at(address)) for _ in range(350)]
        for client in (last, probe):  # the last one shows that all were accepted
            client.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
            assert client.recv(100).startswith(b"HTTP/1.1 200 ")


async def test_loop_that_hangs_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(monitor_reporting, "_LOOK_SECONDS", 0.1)
    async with watched(ANYWHERE):
        url = capsys.readouterr().err.split()[-1] + "/livez"
        # Not awaited: this loop hangs until the answer has come.
        assert until_shown(url, 503) == "the event loop does not answer\n"
        await asyncio.to_thread(until_shown, url, 200)


def test_work_that_is_frozen_is_not_live_and_its_process_ends_with_it(start: Start) -> None:
    work = start(script=WORKS, stdin=-1)
    assert work.stderr is not None
    address = work.stderr.readline().split()[-1]
    until_shown(f"{address}/livez", 200)
    work.send_signal(signal.SIGSTOP)
    for page in ("livez", "readyz"):
        until_shown(f"{address}/{page}", 503, "nothing was heard of this process for ")
    shown = get(f"{address}/metrics")[1]
    assert "orderchain_ready 0.0\n" in shown, "what was true a while ago is shown no longer"
    names = re.findall(r"^(\w+)", shown, flags=re.MULTILINE)
    assert names == ["orderchain_ready", "orderchain_metrics_age_seconds"]
    work.send_signal(signal.SIGCONT)
    until_shown(f"{address}/livez", 200)
    work.kill()
    bound = Deadline()
    with suppress(OSError):
        while True:
            get(f"{address}/livez")
            assert bound.left() > 0
