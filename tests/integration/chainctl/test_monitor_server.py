"""`--http`: metrics and health of commands that run long, as an orchestrator asks for them."""

import json
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from tests.deadlines import Deadline
from tests.integration.chainctl.conftest import Call, Refused, Start
from tests.integration.chainctl.monitor_pages import (
    address_of,
    get,
    memory_of,
    serving_for,
    stranger_at,
    until_ready,
)
from tests.integration.chainctl.sizes import FILLED_ROWS

JSON = ("--log-format", "json")


def end(process: subprocess.Popen[str]) -> list[dict[str, Any]]:
    """End the command as an orchestrator does; return what it wrote on stderr."""
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate()
    assert process.returncode == 143, err
    return [json.loads(line) for line in err.splitlines()]


def test_receiver_is_ready_once_it_has_caught_up_and_logs_json(
    start: Start, module_settings: dict[str, str], filled_once: int, tmp_path: Path
) -> None:
    process = start(
        "receive", "--chain", filled_once, "--name", "r1", "--output", tmp_path / "j.jsonl",
        "--follow", "--http", 0, "--log-level", "info", *JSON, settings=module_settings,
    )  # fmt: skip
    address = address_of(process)
    until_ready(address)
    assert get(f"{address}/livez")[0] == 200
    labels = f'{{chain="{filled_once}",name="r1"}}'
    wanted = {
        f"orderchain_receiver_head_delivered{labels} {float(FILLED_ROWS)}",
        f"orderchain_receiver_lag_ids{labels} 0.0",
        f"orderchain_receiver_live{labels} 1.0",
    }
    bound = Deadline()
    # It is ready with a lag of so few rows, too, while the lag is young.
    while not wanted <= {*get(f"{address}/metrics")[1].splitlines()}:
        assert bound.left() > 0, get(f"{address}/metrics")[1]
        time.sleep(0.05)
    written = end(process)
    assert {(line["chain"], line["name"]) for line in written} == {(filled_once, "r1")}
    assert any(line["message"].startswith("chain") and "live at" in line["message"]
               for line in written)  # fmt: skip


def test_leader_is_ready_and_its_standby_lives_and_is_not(
    start: Start, module_settings: dict[str, str], chain: int, make_topic: Callable[..., None],
) -> None:  # fmt: skip
    topic = f"orders-{chain}"
    make_topic(topic)
    common = ("sequence", "--chain", chain, "--intake-topic", topic, "--http", 0, *JSON)
    leader = start(*common, settings=module_settings)
    leading = address_of(leader)
    until_ready(leading)
    standby = start(*common, "--standby", settings=module_settings)
    waiting = address_of(standby)
    assert get(f"{waiting}/livez")[0] == 200
    status, reason = get(f"{waiting}/readyz")
    assert status == 503
    assert reason in (f"chain {chain}: not started yet\n", f"chain {chain}: not leading\n")
    text = get(f"{leading}/metrics")[1]
    assert re.search(r'orderchain_sequencer_epoch\{chain="\d+",name="[^"]+"\} 1\.0', text)
    assert f'orderchain_intake_records_total{{topic="{topic}"}} 0.0' in text
    end(leader)
    until_ready(waiting)
    end(standby)


@pytest.fixture
def owner(call: Call, empty_database: str, module_settings: dict[str, str]) -> dict[str, str]:
    """The settings of a relay, of a database with the outbox's tables."""
    settings = {**module_settings, "CHAINCTL_DATABASE": empty_database}
    assert call("schema", "apply", "--part", "outbox", settings=settings).code == 0
    return settings


def test_relay_is_ready_once_it_runs_and_counts(
    start: Start, owner: dict[str, str], free_chain: int
) -> None:
    process = start(
        "outbox", "relay", "--group", f"g{free_chain}", "--http", 0, *JSON, settings=owner
    )
    address = address_of(process)
    until_ready(address)
    lines = get(f"{address}/metrics")[1].splitlines()
    assert "orderchain_outbox_relay_sent_total 0.0" in lines
    assert "orderchain_outbox_waiting 0.0" in lines
    assert "orderchain_ready 1.0" in lines
    end(process)


class Vault(BaseHTTPRequestHandler):
    """Takes seals, or is out of order."""

    status = 201
    has_refused = Event()

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        if self.status != 201:
            self.has_refused.set()
        self.send_response(self.status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Stay silent."""


def test_export_of_seals_is_ready_while_they_can_be_stored(
    start: Start, module_settings: dict[str, str], filled_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Vault) as vault:
        Thread(target=vault.serve_forever, args=(0.01,), daemon=True).start()
        process = start(
            "seal", "export", "--chain", filled_once, "--store", f"http://127.0.0.1:{vault.server_port}",
            "--every", "200ms", "--http", 0, *JSON, settings=module_settings,
        )  # fmt: skip
        address = address_of(process)
        until_ready(address)
        bound = Deadline()
        exported = f'orderchain_seal_exported_id{{chain="{filled_once}"}} {float(FILLED_ROWS)}'
        while exported not in (text := get(f"{address}/metrics")[1]):
            assert bound.left() > 0, text
        assert f'orderchain_seal_export_age_seconds{{chain="{filled_once}"}}' in text
        monkeypatch.setattr(Vault, "status", 503)
        Vault.has_refused.wait()  # on a loaded machine it may be late, and not ready, before that
        until_ready(address, 503)
        assert re.fullmatch(r"no seals were stored for \d+ s\n", get(f"{address}/readyz")[1])
        monkeypatch.setattr(Vault, "status", 201)
        until_ready(address)
        written = end(process)
        vault.shutdown()
    warnings = [line["message"] for line in written if line["level"] == "warning"]
    assert warnings
    assert all(line.endswith("; trying again after 0.2 s") for line in warnings), warnings


def test_port_in_use_is_refused_in_one_line(
    refused: Refused, owner: dict[str, str], free_chain: int
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        line = refused(
            "outbox", "relay", "--group", f"g{free_chain}", "--http", address, settings=owner
        )
    expected = "expected an address to listen at: Address already in use"
    assert line == f"chainctl: --http was {address!r}, {expected}\n"


@pytest.mark.parametrize("text", ["", "x", ":80", "127.0.0.1:", "65536", "::1:x"])
def test_text_that_is_no_address_is_refused(refused: Refused, text: str) -> None:
    line = refused("outbox", "relay", "--http", text)
    assert "[HOST:]PORT" in line


CHUNKS = (
    b"GET /livez HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 2**21
)
"""A body of 12 MB in chunks of a byte, which took a strict parser a minute of one core."""

LONG = b"GET /livez HTTP/1.1\r\nHost: x\r\nX: " + b"x" * 17_000 + b"\r\n\r\n"


@pytest.fixture
def leading(
    start: Start, module_settings: dict[str, str], chain: int, make_topic: Callable[..., None]
) -> tuple[subprocess.Popen[str], str]:
    """A leader that is ready, with a short lease, and where it serves."""
    topic = f"orders-{chain}"
    make_topic(topic)
    process = start(
        "sequence", "--chain", chain, "--intake-topic", topic, "--http", 0, *JSON,
        settings={**module_settings, "CHAINCTL_LEASE_SECONDS": "2"},
    )  # fmt: skip
    address = address_of(process)
    until_ready(address)
    return process, address


def send_chunks(address: str) -> None:
    """Send all chunks, as fast as they are taken, or until the connection is closed."""
    with stranger_at(address) as stranger, suppress(OSError):
        stranger.sendall(CHUNKS)


def send_ahead(address: str) -> None:
    """Send requests as fast as they are taken, and read all answers, until it is closed."""
    with stranger_at(address) as stranger:

        def send() -> None:
            with suppress(OSError):
                while True:
                    stranger.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 1_000)

        sending = Thread(target=send)
        sending.start()
        with suppress(OSError):
            while stranger.recv(2**20):
                pass
        sending.join()


def held_by(process_id: int, address: str) -> tuple[int, int]:
    """The sockets at an address, and the threads, of a process; its own connections come and go."""
    place, port = Path(f"/proc/{process_id}"), int(address.rpartition(":")[2])
    opened = {each.readlink().name for each in (place / "fd").iterdir()}
    table = [line.split() for line in (place / "net/tcp").read_text().splitlines()[1:]]
    at_port = {f"socket:[{row[9]}]" for row in table if int(row[1].rpartition(":")[2], 16) == port}
    return len(opened & at_port), len([*(place / "task").iterdir()])


@pytest.mark.merge
def test_strangers_do_not_depose_the_leader(leading: tuple[subprocess.Popen[str], str]) -> None:
    process, address = leading
    serving = serving_for(process.pid)
    before, memory = held_by(process.pid, address), [*map(memory_of, (process.pid, serving))]
    strangers = [
        Thread(target=send, args=(address,)) for send in (send_chunks, send_chunks, send_ahead)
    ]
    for each in strangers:
        each.start()
    while any(each.is_alive() for each in strangers):
        assert get(f"{address}/livez") == (200, "ok\n")
    taken = [
        memory_of(each) - held for each, held in zip((process.pid, serving), memory, strict=True)
    ]
    assert max(taken) < 2**25, taken
    with stranger_at(address) as stranger:
        stranger.sendall(LONG)
        assert stranger.recv(100).startswith(b"HTTP/1.1 431 ")
    with ExitStack() as idle:
        for count in (50, 450):
            for _ in range(count):
                idle.enter_context(stranger_at(address))
            assert get(f"{address}/livez") == (200, "ok\n")
            assert get(f"{address}/readyz") == (200, "ok\n")
            assert held_by(process.pid, address) == before, "the work has nothing for strangers"
    assert re.search(r"orderchain_sequencer_epoch\{.*\} 1\.0", get(f"{address}/metrics")[1])
    assert not [line for line in end(process) if line["level"] == "error"]
