"""`chainctl console` over HTTP: what it shows, who may read, who may act, and what is recorded."""

from __future__ import annotations

import json
import socket
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from chain_kernel.sql import AUDITOR
from tests.builders.stored_chain import StoredChain
from tests.integration.chainctl.console.conftest import CHAIN, ROWS, Filled, RunningConsole, until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from local_stack import PostgresServer
    from tests.integration.chainctl.conftest import Call, Refused

    Settings = dict[str, str]
    OnDatabase = Callable[[Callable[[Any], Awaitable[Any]]], Any]
    RunConsole = Callable[..., RunningConsole]

REASON = "the drill of November"
TOKEN = "a-token-of-the-tests-0123456789"
STEP_DOWN = {"chain": CHAIN, "reason": REASON, "actor": "eve", "dry_run": False}


def acts_of(on_database: OnDatabase) -> list[dict[str, Any]]:
    async def read(admin: Any) -> Any:
        return [dict(row) for row in await admin.fetch("SELECT * FROM chain_act ORDER BY act_id")]

    return list(on_database(read))


# -- what it shows ---------------------------------------------------------------------------------


def test_state_has_every_part_as_the_reading_commands_show_it(
    console: RunningConsole, filled: Filled, call: Call, settings: Settings
) -> None:
    state = console.state()
    chain = state["chains"][str(CHAIN)]
    shown = json.loads(call("status", "--chain", CHAIN, "--json", settings=settings).out)
    for name in ("epoch", "leader", "leader_state", "head_persisted", "head_published", "topic"):
        assert chain[name] == shown[name]
    assert chain["leader_state"] == "silent"
    assert chain["head_persisted"] == filled.head

    matching, risk = (state["receivers"][f"{CHAIN}/{name}"] for name in ("matching", "risk"))
    listed = json.loads(call("lag", "--chain", CHAIN, "--json", settings=settings).out)
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
    assert {row["last_error"] for row in state["stuck"].values()} == {"no account"}
    assert len(state["stuck"]) == 3
    verified = state["verified"][str(CHAIN)]
    assert (verified["until_id"], verified["verified_by"]) == (filled.head, "audit@test")
    assert verified["contradicted_id"] is None
    sections = [notice["section"] for notice in state["notices"].values()]
    assert sections.count("outbox") == 1
    assert {"chains", "receivers", "gaps"} <= set(sections)


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


@pytest.mark.parametrize("parts", [("chain",)])
def test_database_without_chains_and_without_an_outbox_is_shown_as_empty(
    run_console: RunConsole,
) -> None:
    state = run_console().state()
    assert state["chains"] == state["receivers"] == state["gaps"] == state["notices"] == {}
    assert state["absent"] == {"outbox": {"why": "this database has no outbox"}}


@pytest.mark.parametrize("parts", [("outbox",)])
def test_business_database_with_an_outbox_alone_shows_that(run_console: RunConsole) -> None:
    state = run_console().state()
    assert list(state["absent"]) == ["chains"]
    assert "chainctl schema apply" in state["absent"]["chains"]["why"]
    assert state["outbox"] == {}


@pytest.mark.parametrize("parts", [()])
def test_database_without_our_tables_is_refused(refused: Refused, settings: Settings) -> None:
    assert "chainctl schema apply" in refused("console", settings=settings)


def test_auditor_sees_the_chains_and_why_not_the_outbox_and_may_not_act(
    postgres_server: PostgresServer, database_name: str, filled: Filled, run_console: RunConsole
) -> None:
    database = postgres_server.dsn(AUDITOR, database_name)
    console = run_console(settings={"CHAINCTL_DATABASE": database})
    state = console.state()
    assert str(CHAIN) in state["chains"]
    assert "member of outbox_operator" in state["absent"]["outbox"]["why"]
    answer = console.act("step-down", STEP_DOWN)
    assert answer.status == 403
    assert "member of orderchain_owner" in answer.json["expected"]


def test_outage_of_the_database_is_shown_with_the_last_state_and_ends(
    run_console: RunConsole, filled: Filled, postgres_server: PostgresServer, database_name: str
) -> None:
    console = run_console()
    with console.events() as events:
        assert next(events)[0] == "state"
        allow = "ALTER DATABASE %s ALLOW_CONNECTIONS %s"
        postgres_server.execute(allow % (database_name, "false"))
        postgres_server.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE application_name = 'chainctl console'"
        )
        away = next(changed["feed"] for _, changed in events if "feed" in changed)
        assert away["reader"]["why"]
        assert console.state()["chains"][str(CHAIN)]["head_persisted"] == filled.head
        postgres_server.execute(allow % (database_name, "true"))
        back = next(
            changed["feed"]["reader"] for _, changed in events
            if changed.get("feed", {}).get("reader", {}).get("why") == ""
        )  # fmt: skip
        assert back["old_seconds"] == 0


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


def test_page_under_a_foreign_name_is_refused_where_reading_is_open(
    console: RunningConsole,
) -> None:
    for host in ("evil.example", "127.0.0.1.evil.example", "", "[", "10.0.0.7"):
        assert console.get("/api/state", Host=host).status in (400, 421), host


def test_local_names_are_answered(console: RunningConsole) -> None:
    port = console.address.rpartition(":")[2]
    for host in (f"localhost:{port}", "localhost:9999", "[::1]:80", "127.0.0.1", "127.0.0.2:80"):
        assert console.get("/api/state", Host=host).status == 200


def test_reading_through_a_proxy_needs_the_token_although_it_rewrites_the_host(
    console: RunningConsole,
) -> None:
    for name in ("Forwarded", "X-Forwarded-For", "X_Forwarded_Proto", "X-Real-IP", "Via"):
        headers = {name: "for=192.0.2.1", "Host": "127.0.0.1"}
        for path in ("/api/state", "/events", "/report"):
            assert console.get(path, **headers).status == 401, (name, path)
        shown = console.get("/api/state", Authorization=f"Bearer {console.token}", **headers)
        assert shown.status == 200


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
def test_connections_that_idle_or_watch_block_no_page_and_no_act(
    console: RunningConsole, sent: bytes
) -> None:
    with connections(console, 210, sent):
        assert console.state()["chains"]
        assert console.act("step-down", STEP_DOWN).status == 200
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


# -- acts ------------------------------------------------------------------------------------------


def test_act_is_recorded_with_its_actor_and_reason(
    console: RunningConsole, on_database: OnDatabase
) -> None:
    answer = console.act("step-down", STEP_DOWN)
    assert answer.status == 200, answer
    done = answer.json
    (act,) = acts_of(on_database)
    assert (act["act"], act["actor"], act["reason"]) == ("step-down", "eve", REASON)
    assert (done["act_id"], done["actor"], done["dry_run"]) == (act["act_id"], "eve", False)
    assert on_database(lambda admin: admin.fetchval("SELECT step_down FROM chain_lease"))
    shown = until(lambda: list(console.state()["acts"].values()))
    assert [(row["act"], row["reason"]) for row in shown] == [("step-down", REASON)]


def test_dry_run_shows_what_it_would_do_and_does_nothing(
    console: RunningConsole, filled: Filled, on_database: OnDatabase
) -> None:
    asked = {"chain": CHAIN, "receiver": "matching", "reason": REASON, "dry_run": True}
    for act, words in {
        "unhalt": "may start",
        "forget": "forgotten",
        "reset": "checkpoint 0",
    }.items():
        answer = console.act(act, asked)
        assert answer.status == 200, answer
        assert (answer.json["dry_run"], answer.json["act_id"]) == (True, None)
        assert words in " ".join(answer.json["lines"])
    moved = console.act("move", {**asked, "to_id": filled.head})
    assert f"checkpoint {filled.head}; {ROWS} rows never processed" in moved.json["lines"][1]
    assert acts_of(on_database) == []
    state = console.state()["receivers"][f"{CHAIN}/matching"]
    assert (state["state"], state["head_delivered"]) == ("halted", filled.middle)


def test_halted_receiver_is_moved_let_start_and_forgotten(
    console: RunningConsole, filled: Filled, on_database: OnDatabase
) -> None:
    asked = {"chain": CHAIN, "receiver": "matching", "reason": REASON, "dry_run": False}
    assert console.act("move", {**asked, "to_id": filled.head}).status == 200
    assert console.act("unhalt", asked).status == 200
    receiver = console.state()["receivers"][f"{CHAIN}/matching"]
    assert (receiver["state"], receiver["head_delivered"]) == ("keeps up", filled.head)
    assert console.act("forget", asked).status == 200
    until(lambda: f"{CHAIN}/matching" not in console.state()["receivers"])
    assert [act["act"] for act in acts_of(on_database)] == ["move", "unhalt", "forget"]
    again = console.act("forget", asked)
    assert again.status == 422
    assert "a receiver of chain 7" in again.json["expected"]


def test_abnormal_deliveries_are_retried_and_abandoned(
    console: RunningConsole, on_database: OnDatabase
) -> None:
    first, *others = [row["message_id"] for row in console.state()["stuck"].values()]
    asked = {"reason": REASON, "actor": "eve", "dry_run": False}
    retried = console.act("retry", {**asked, "message_ids": [first]})
    assert retried.status == 200, retried
    assert [row["message_id"] for row in retried.json["deliveries"]] == [first]
    dry = console.act("abandon", {**asked, "destination": "clearing", "dry_run": True}).json
    assert {row["message_id"] for row in dry["deliveries"]} >= set(others)
    abandoned = console.act("abandon", {**asked, "message_ids": others})
    assert {row["status"] for row in abandoned.json["deliveries"]} == {"abandoned"}
    until(lambda: not console.state()["stuck"])

    async def read(admin: Any) -> list[tuple[Any, ...]]:
        rows = await admin.fetch("SELECT DISTINCT act, actor, reason FROM delivery_act ORDER BY 1")
        return [tuple(row) for row in rows]

    assert on_database(read) == [("abandon", "eve", REASON), ("retry", "eve", REASON)]
    shown = until(lambda: console.state()["message_acts"].values())
    assert {(act["of"], act["act"]) for act in shown} == {
        ("delivery", "retry"), ("delivery", "abandon"),
    }  # fmt: skip


async def letter_acts(admin: Any) -> list[tuple[Any, ...]]:
    rows = await admin.fetch("SELECT act, actor, reason FROM inbox_act ORDER BY act_id")
    return [tuple(row) for row in rows]


def test_dead_letters_are_shown_as_the_command_lists_them(
    letters: list[str], console: RunningConsole, call: Call, settings: Settings
) -> None:
    state = console.state()
    listed = json.loads(call("outbox", "dead", "list", "--json", settings=settings).out)
    assert [row["message_id"] for row in listed] == letters[::-1]
    assert list(state["letters"]) == [f"{row['message_id']}/{row['consumer']}" for row in listed]
    for shown, row in zip(state["letters"].values(), listed, strict=True):
        for name in ("consumer", "destination", "topic", "key", "failures", "reason", "last_error"):
            assert shown[name] == row[name]
    assert (shown["topic"], shown["key"], shown["failures"]) == ("trades", "acct-9", 4)
    assert {name: row["dead"] for name, row in state["inboxes"].items()} == {"books": 2, "risk": 1}
    texts = [each["text"] for each in state["notices"].values() if each["section"] == "letters"]
    assert texts == [
        "Consumer books: it has given up 2 messages. They are dead letters.",
        "Consumer risk: it has given up 1 message. It is a dead letter.",
    ]


def test_dead_letters_are_retried_and_abandoned_with_a_reason(
    letters: list[str], console: RunningConsole, on_database: OnDatabase
) -> None:
    asked = {"reason": REASON, "actor": "eve", "dry_run": False}
    dry = console.act("dead-retry", {**asked, "consumer": "books", "dry_run": True})
    assert dry.status == 200, dry
    assert dry.json["lines"] == ["2 dead letters would be retried."]
    assert {row["message_id"] for row in dry.json["deliveries"]} == set(letters[:2])
    assert on_database(letter_acts) == []
    one = {"message_ids": [letters[0]], "consumer": "books"}
    retried = console.act("dead-retry", {**asked, **one})
    assert retried.json["lines"] == ["1 dead letter is retried."]
    assert [row["status"] for row in retried.json["deliveries"]] == ["parked"]
    again = console.act("dead-abandon", {**asked, **one})  # it is no dead letter any more
    assert again.json["lines"] == ["0 dead letters are abandoned."]
    assert console.act("dead-abandon", {**asked, "message_ids": letters[1:]}).status == 200
    until(lambda: not console.state()["letters"])
    assert console.state()["inboxes"]["books"]["parked"] == 1
    assert on_database(letter_acts) == [
        ("retry", "eve", REASON), ("abandon", "eve", REASON), ("abandon", "eve", REASON),
    ]  # fmt: skip
    shown = sorted(console.state()["message_acts"].values(), key=lambda act: act["act_id"])
    assert [(act["of"], act["act"], act["actor"], act["reason"]) for act in shown] == [
        ("dead letter", act, "eve", REASON) for act in ("retry", "abandon", "abandon")
    ]
    assert (shown[0]["message_id"], shown[0]["consumer"]) == (letters[0], "books")


@pytest.mark.parametrize("parts", [("inbox",)])
def test_database_of_a_consumer_alone_shows_its_dead_letters(
    run_console: RunConsole, letters: list[str]
) -> None:
    state = run_console().state()
    assert len(state["letters"]) == len(letters)
    assert sorted(state["absent"]) == ["chains", "outbox"]


STRANGERS: tuple[tuple[dict[str, str], int, str], ...] = (
    ({"Authorization": ""}, 401, "unauthenticated"),
    ({"Authorization": "Bearer "}, 401, "unauthenticated"),
    ({"Authorization": "Bearer wrong"}, 401, "unauthenticated"),
    ({"Authorization": "Bearer w\xfcrg"}, 401, "unauthenticated"),
    ({"Authorization": "Basic x"}, 401, "unauthenticated"),
    ({"Origin": "http://evil.example"}, 403, "other_origin"),
    ({"Origin": "null"}, 403, "other_origin"),
    ({"Origin": "http://["}, 403, "other_origin"),
    ({"Sec_Fetch_Site": "cross-site"}, 403, "other_origin"),
    ({"Sec_Fetch_Site": "same-site"}, 403, "other_origin"),
    ({"Content_Type": "text/plain"}, 415, "not_json"),
    ({"Content_Type": ""}, 415, "not_json"),
)


def test_act_of_a_stranger_or_of_another_site_is_refused(
    console: RunningConsole, on_database: OnDatabase
) -> None:
    for changed, status, error in STRANGERS:
        answer = console.act("step-down", STEP_DOWN, **changed)
        assert (answer.status, answer.json["error"]) == (status, error), changed
    assert acts_of(on_database) == []


def test_act_by_a_program_that_is_no_browser_is_done(console: RunningConsole) -> None:
    dry = {**STEP_DOWN, "dry_run": True}
    assert console.act("step-down", dry, Origin="", Sec_Fetch_Site="").status == 200


BAD_ACTS: tuple[tuple[str, dict[str, Any], int, str], ...] = (
    ("step-down", {"reason": " "}, 422, "printable characters"),
    ("step-down", {"reason": "two\nlines"}, 422, "printable characters"),
    ("step-down", {"reason": None}, 400, "reason"),
    ("step-down", {"chain": 99}, 422, "chain was 99"),
    ("step-down", {"chain": 0}, 400, ">= 1"),
    ("step-down", {"dry_run": "no"}, 400, "dry_run"),
    ("step-down", {"force": True}, 400, "force"),
    ("unhalt", {"receiver": "risk"}, 422, "a halted receiver"),
    ("unhalt", {}, 400, "receiver"),
    ("move", {"receiver": "risk", "to_id": 1}, 422, "the end of a batch"),
    ("drop-all", {}, 404, ""),
    ("abandon", {"chain": msgspec.UNSET}, 422, "messages, a destination or a consumer"),
    ("dead-abandon", {"chain": msgspec.UNSET}, 422, "messages or a consumer"),
)


def test_act_that_says_too_little_is_refused_and_nothing_is_done(
    console: RunningConsole, on_database: OnDatabase
) -> None:
    for act, asked, status, words in BAD_ACTS:
        body = {**STEP_DOWN, **asked}
        given = {name: value for name, value in body.items() if value is not msgspec.UNSET}
        answer = console.act(act, given)
        assert answer.status == status, (asked, answer)
        assert words in answer.json.get("expected", ""), asked
    assert acts_of(on_database) == []


def test_body_that_is_no_act_is_refused(console: RunningConsole) -> None:
    for body, status in (
        (b"", 400), (b"{", 400), (b"\xff", 400), (b"[" * 60_000, 400), (b" " * 70_000, 413),
    ):  # fmt: skip
        assert console.act("step-down", body).status == status, body[:9]


# -- beyond loopback -------------------------------------------------------------------------------


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n")
    path.chmod(0o600)
    return path


def test_reading_from_elsewhere_needs_the_token_once(
    run_console: RunConsole, filled: Filled, token_file: Path
) -> None:
    # 0.0.0.0 listens on loopback, too: no other interface is needed here.
    console = run_console("--host", "0.0.0.0", "--token-file", token_file, token=TOKEN)  # noqa: S104
    assert console.get("/").status == 200  # the page holds nothing of the database
    for path in ("/api/state", "/events", "/report"):
        assert console.get(path).status == 401
    assert console.get("/api/state", Authorization=f"Bearer {TOKEN}").status == 200
    cookie = sign_in(console)
    assert TOKEN not in cookie
    assert console.get("/api/state", Cookie=cookie).status == 200
    with console.events(Cookie=cookie) as events:
        assert str(CHAIN) in next(events)[1]["chains"]
    # The cookie reads, and no more.
    refused = console.act("step-down", STEP_DOWN, Authorization="", Cookie=cookie)
    assert refused.status == 401
    assert console.get("/api/state", Cookie=cookie.replace("=", "=0")).status == 401


def sign_in(console: RunningConsole) -> str:
    """Show the token once, as the page does; return the cookie."""
    headers = {"Content_Type": "application/json", "Authorization": f"Bearer {console.token}"}
    with console.asked("POST", "/api/reading", {}, **headers) as response:
        assert response.status == 204
        given = response.headers["Set-Cookie"]
    assert "HttpOnly" in given
    assert "SameSite=strict" in given
    return str(given.partition(";")[0])


# -- the command -----------------------------------------------------------------------------------


def test_console_ends_in_good_order_with_viewers(console: RunningConsole) -> None:
    with console.events() as events:
        next(events)
        err = console.end()
        assert "Traceback" not in err
        list(events)  # the stream has an end


def test_other_host_without_a_token_file_is_refused(refused: Refused, settings: Settings) -> None:
    line = refused("console", "--host", "0.0.0.0", settings=settings)  # noqa: S104
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
    refused: Refused, settings: Settings, tmp_path: Path, content: str, mode: int, words: str
) -> None:
    path = tmp_path / "token"
    path.write_text(content)
    path.chmod(mode)
    line = refused("console", "--token-file", path, settings=settings)
    assert words in line
    assert content not in line


def test_what_keeps_it_from_starting_is_refused_in_one_line(
    refused: Refused, settings: Settings, tmp_path: Path
) -> None:
    assert "--token-file" in refused("console", "--token-file", tmp_path / "no", settings=settings)
    assert "--refresh" in refused("console", "--refresh", "10ms", settings=settings)
    assert "--database" in refused("console", settings={})
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        line = refused("console", "--port", port, settings=settings)
    assert "--host, --port" in line
