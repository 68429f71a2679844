"""`chainctl console` over HTTP: what it shows, and who may read."""

import asyncio
import socket
from base64 import b64encode
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from chain_kernel.sql import AUDITOR
from chainctl.console.state_reader import StateReader
from chainctl.settings import Settings as ConsoleSettings
from local_stack import PostgresServer
from tests.builders.stored_chain import StoredChain
from tests.integration.chainctl.conftest import Call, Ctl, Refused
from tests.integration.chainctl.console.conftest import CHAIN, ROWS, Filled, RunningConsole, until

Settings = dict[str, str]
OnDatabase = Callable[[Callable[[Any], Awaitable[Any]]], Any]
RunConsole = Callable[..., RunningConsole]

WAITING = (
    "SELECT query FROM pg_stat_activity WHERE datname = current_database() "
    "AND wait_event_type = 'Lock'"
)
TOKEN = "a-token-of-the-tests-0123456789"


# -- what it shows ---------------------------------------------------------------------------------


def test_state_has_every_part_as_the_reading_commands_show_it(
    console: RunningConsole, filled: Filled, ctl: Ctl
) -> None:
    state = console.state()
    chain = state["chains"][str(CHAIN)]
    shown = ctl.json("status", "--chain", CHAIN)
    for name in ("epoch", "leader", "leader_state", "head_persisted", "head_published", "topic"):
        assert chain[name] == shown[name]
    assert chain["leader_state"] == "silent"
    assert chain["head_persisted"] == filled.head

    matching, risk = (state["receivers"][f"{CHAIN}/{name}"] for name in ("matching", "risk"))
    listed = ctl.json("lag", "--chain", CHAIN)
    assert {row["receiver"]: row["behind_rows"] for row in listed} == {
        "matching": matching["behind_rows"], "risk": risk["behind_rows"],
    }  # fmt: skip
    assert (matching["state"], matching["halted"]) == ("halted", "PrimaryBehind at 50")
    assert "ends at 40" in matching["halt_detail"]
    assert (risk["state"], risk["agrees"], risk["behind_rows"]) == ("keeps up", "yes", 0)

    (gap,) = state["gaps"].values()
    assert (gap["outcome"], gap["after_id"], gap["blocks"]) == ("missing", filled.middle, True)
    counted = {key: row["deliveries"] for key, row in state["outbox"].items()}
    assert counted == {"clearing/abnormal": 3, "clearing/init": 2}
    verified = state["verified"][str(CHAIN)]
    assert (verified["until_id"], verified["verified_by"]) == (filled.head, "audit@test")
    assert verified["contradicted_id"] is None
    sections = [notice["section"] for notice in state["notices"].values()]
    assert sections.count("outbox") == 1
    assert {"chains", "receivers", "gaps"} <= set(sections)


@pytest.mark.merge
def test_consumer_of_which_nothing_was_heard_is_a_warning(
    run_console: RunConsole, filled: Filled, on_database: OnDatabase
) -> None:
    sent = """UPDATE outbox_pending
        SET status = 1, topic = 't', "partition" = 0, "offset" = 7, next_send_at = 'infinity',
            sent_at = now() - interval '6 minutes' WHERE status = 0"""
    on_database(lambda admin: admin.execute(sent))
    state = run_console().state()
    never = "nothing was ever heard of consumer books"
    assert state["outbox"]["clearing/confirmed"]["silent"] == never
    text = f"Outbox, destination clearing: {never}."
    assert ("warn", text) in {(each["level"], each["text"]) for each in state["notices"].values()}


def test_rewritten_history_is_shown_as_contradicted(
    run_console: RunConsole, filled: Filled, on_database: OnDatabase
) -> None:
    change = "UPDATE chain_batch SET seal = decode(repeat('ab', 32), 'hex') WHERE last_id = $1"
    on_database(lambda admin: admin.execute(change, filled.head))
    verified = run_console().state()["verified"][str(CHAIN)]
    assert (verified["contradicted_id"], verified["contradicted"]) == (filled.head, 1)


def test_events_bring_the_whole_state_and_then_each_order_with_its_pace(
    run_console: RunConsole, on_database: OnDatabase
) -> None:
    chains: list[StoredChain] = []

    async def create(admin: Any) -> None:
        chains.append(await StoredChain.create(admin, CHAIN))

    async def commit(admin: Any) -> None:
        chains[0].admin = admin
        await chains[0].commit(ROWS)

    on_database(create)
    with run_console().events() as events:
        kind, state = next(events)
        assert kind == "state"
        assert state["chains"][str(CHAIN)]["head_persisted"] == 0
        on_database(commit)
        head = chains[0].chain.batches[-1].last_id
        moved = next(
            changed["chains"][str(CHAIN)]
            for kind, changed in events
            if "head_persisted" in changed.get("chains", {}).get(str(CHAIN), {})
        )
        assert moved["head_persisted"] == head
        assert moved["orders_per_second"] > 0
        assert "topic" not in moved  # what has not changed is not sent again


@pytest.mark.parametrize(
    ("parts", "absent"),
    [(("chain",), ["outbox"]), (("outbox",), ["chains"]), (("inbox",), ["chains", "outbox"])],
)
def test_database_with_one_part_shows_that_and_why_not_the_others(
    request: pytest.FixtureRequest, parts: tuple[str], absent: list[str], run_console: RunConsole
) -> None:
    if parts == ("inbox",):
        request.getfixturevalue("letters")
    state = run_console().state()
    assert sorted(state["absent"]) == absent
    assert state["chains"] == state["receivers"] == state["gaps"] == state["outbox"] == {}
    dead = {name: row["dead"] for name, row in state["inboxes"].items()}
    assert dead == ({"books": 2, "risk": 1} if parts == ("inbox",) else {})
    assert [each["section"] for each in state["notices"].values()] == ["inboxes"] * len(dead)


@pytest.mark.parametrize("parts", [()])
def test_database_without_our_tables_is_refused(ctl: Ctl) -> None:
    assert "chainctl schema apply" in ctl.refused("console")


def test_auditor_sees_the_chains_and_why_not_the_outbox(
    postgres_server: PostgresServer, database_name: str, filled: Filled, run_console: RunConsole
) -> None:
    database = postgres_server.dsn(AUDITOR, database_name)
    console = run_console(settings={"CHAINCTL_DATABASE": database})
    state = console.state()
    assert str(CHAIN) in state["chains"]
    assert "member of outbox_operator" in state["absent"]["outbox"]["why"]


@pytest.mark.parametrize(
    ("lock_seconds", "why"), [(0.2, "outbox_done is locked"), (60.0, "no answer in time")]
)
def test_part_that_gives_no_answer_stays_as_it_was_and_keeps_no_other_from_being_read(
    database: str, filled: Filled, monkeypatch: pytest.MonkeyPatch, lock_seconds: float, why: str
) -> None:
    for place, value in {
        "chainctl.locks.LOCK_SECONDS": lock_seconds,
        "chainctl.console.state_reader.READ_SECONDS": 6.0,
        "chainctl.console.state_reader.OUTBOX_SECONDS": 0.0,
        "chainctl.console.state_reader.SHARE": 0,
    }.items():
        monkeypatch.setattr(place, value)

    async def look() -> None:
        reader = StateReader(ConsoleSettings(database=database), None)
        admin = await asyncpg.connect(database)
        try:
            first = await reader.read()
            await admin.execute("BEGIN; LOCK TABLE outbox_done")
            second = await reader.read()
            assert why in second.absent.pop("outbox")
            assert not second.absent
            assert second.outbox == first.outbox
            assert second.read_at > first.read_at
            assert await admin.fetch(WAITING) == [], "the statement was given up on the server, too"
            await admin.execute("ROLLBACK")
            assert (await reader.read()).absent == {}
        finally:
            await admin.close()
            await reader.close()

    asyncio.run(look())


def test_report_of_the_last_verification_is_served_and_runs_nothing(
    run_console: RunConsole, filled: Filled, call: Call, settings: Settings, tmp_path: Path
) -> None:
    page = tmp_path / "report.html"
    console = run_console("--report", page)
    assert console.state()["report"] == {}
    assert console.get("/report").status == 404
    done = call(
        "verify", "--local", "--chain", CHAIN, "--source", "database", "--report", page,
        settings={**settings, "CHAINCTL_AUDIT_DATABASE": settings["CHAINCTL_DATABASE"]},
    )  # fmt: skip
    assert done.code == 0, done
    last = until(lambda: console.state()["report"].get("last"))
    assert last["title"] == f"Chain {CHAIN}: complete"
    assert last["is_clean"] is True
    answer = console.get("/report")
    assert answer.body == page.read_bytes()
    assert "sandbox" in answer.headers["Content-Security-Policy"]
    assert "script-src" not in answer.headers["Content-Security-Policy"]


# -- the page --------------------------------------------------------------------------------------


def test_page_loads_nothing_from_elsewhere_and_nothing_inline(console: RunningConsole) -> None:
    page = console.get("/")
    assert page.status == 200
    policy = page.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "://" not in page.body.decode()
    assert b"<style" not in page.body
    assert b" style=" not in page.body
    for name in ("console.css", "console.js", "icon.svg"):
        file = console.get(f"/static/{name}")
        assert file.status == 200
        assert b"//cdn" not in file.body
    for answer in (page, console.get("/api/state"), console.get("/static/nothing.js")):
        assert answer.headers["X-Frame-Options"] == "DENY"
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Cache-Control"] == "no-store"
    assert console.get("/livez").body == b"ok\n"
    assert console.get("/static/../app.py").status == 404


def test_local_names_alone_are_answered_where_reading_is_open(console: RunningConsole) -> None:
    port = console.address.rpartition(":")[2]
    for host in (f"localhost:{port}", "localhost:9999", "[::1]:80", "127.0.0.1", "127.0.0.2:80"):
        assert console.get("/api/state", Host=host).status == 200
    for host in ("evil.example", "127.0.0.1.evil.example", "", "[", "10.0.0.7"):
        assert console.get("/api/state", Host=host).status in (400, 421), host


def test_reading_through_a_proxy_needs_the_token_although_it_rewrites_the_host(
    console: RunningConsole,
) -> None:
    for name in ("Forwarded", "X-Forwarded-For", "X_Forwarded_Proto", "X-Real-IP", "Via"):
        headers = {name: "for=192.0.2.1", "Host": "127.0.0.1"}
        for path in ("/api/state", "/events", "/report"):
            assert console.get(path, **headers).status == 401, (name, path)
        assert console.get("/api/state", **headers, **by_password(console.token)).status == 200


# -- strangers -------------------------------------------------------------------------------------


@contextmanager
def connections(console: RunningConsole, count: int, sent: bytes = b"") -> Iterator[None]:
    """Connections of clients that send so much and take nothing."""
    host, _, port = console.address.partition(":")
    with ExitStack() as opened:
        for _ in range(count):
            one = opened.enter_context(socket.socket())
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            one.connect((host, int(port)))
            one.sendall(sent)
        yield


@pytest.mark.parametrize("sent", [b"", b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n"])
def test_connections_that_idle_or_watch_block_no_page(console: RunningConsole, sent: bytes) -> None:
    with connections(console, 210, sent):
        assert console.state()["chains"]
        with console.events() as events:
            assert next(events)[0] == "state"


def test_reports_that_are_not_read_take_no_memory(
    run_console: RunConsole, filled: Filled, tmp_path: Path
) -> None:
    report = tmp_path / "report.html"
    report.write_bytes(b"<title>t</title>" + bytes(20_000_000))
    console = run_console("--report", report)
    before = resident_bytes(console.process.pid)
    asked = b"GET /report HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with connections(console, 40, asked):
        # Its report is whole, so those of the others were begun before.
        assert console.get("/report").body == report.read_bytes()
        assert resident_bytes(console.process.pid) - before < 200_000_000


def resident_bytes(process_id: int) -> int:
    text = Path(f"/proc/{process_id}/status").read_text()
    return int(text.partition("VmRSS:")[2].split()[0]) * 1024


# -- beyond loopback -------------------------------------------------------------------------------


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n")
    path.chmod(0o600)
    return path


def by_password(token: str) -> dict[str, str]:
    """The header of a browser that was given the token as a password."""
    return {"Authorization": f"Basic {b64encode(f'anybody:{token}'.encode()).decode()}"}


def test_reading_from_elsewhere_needs_the_token(
    run_console: RunConsole, filled: Filled, token_file: Path
) -> None:
    # 0.0.0.0 listens on loopback, too: no other interface is needed here.
    console = run_console("--host", "0.0.0.0", "--token-file", token_file, token=TOKEN)  # noqa: S104
    assert console.get("/livez").status == 200
    wrong: list[dict[str, str]] = [{}, by_password("wrong"), by_password("")]
    wrong += [{"Authorization": each} for each in (f"Bearer {TOKEN}", "Basic w\xfcrg", "Basic")]
    for path in ("/", "/static/console.js", "/api/state", "/events", "/report"):
        for headers in wrong:
            answer = console.get(path, **headers)
            assert answer.status == 401, (path, headers)
            assert answer.headers["WWW-Authenticate"].startswith("Basic")
    assert console.get("/", **by_password(TOKEN)).status == 200
    with console.events(**by_password(TOKEN)) as events:
        assert str(CHAIN) in next(events)[1]["chains"]


# -- the command -----------------------------------------------------------------------------------


def test_console_ends_in_good_order_with_viewers(console: RunningConsole) -> None:
    with console.events() as events:
        next(events)
        err = console.end()
        assert "Traceback" not in err
        list(events)  # the stream has an end


def test_other_host_without_a_token_file_is_refused(ctl: Ctl) -> None:
    line = ctl.refused("console", "--host", "0.0.0.0")  # noqa: S104
    assert "--token-file beside it" in line


@pytest.mark.parametrize(
    ("content", "mode", "words"),
    [
        ("short", 0o600, "one token of 16 to 512 characters"),
        ("two words of a long token", 0o600, "without blanks"),
        ("x" * 600, 0o600, "one token"),
        (TOKEN, 0o644, "that others may not read"),
    ],
)
def test_bad_token_file_is_refused_without_showing_it(
    ctl: Ctl, tmp_path: Path, content: str, mode: int, words: str
) -> None:
    path = tmp_path / "token"
    path.write_text(content)
    path.chmod(mode)
    line = ctl.refused("console", "--token-file", path)
    assert words in line
    assert content not in line


def test_what_keeps_it_from_starting_is_refused_in_one_line(
    refused: Refused, ctl: Ctl, tmp_path: Path
) -> None:
    assert "--token-file" in ctl.refused("console", "--token-file", tmp_path / "no")
    assert "--refresh" in ctl.refused("console", "--refresh", "10ms")
    assert "--database" in refused("console", settings={})
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        line = ctl.refused("console", "--port", port)
    assert "--host, --port" in line
