"""Journals, and rows read straight from the database."""

import asyncio
import json
import os
import resource
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.builders.orders import order_file
from tests.command_call import Done
from tests.deadlines import until
from tests.integration.chainctl.conftest import Call, Ctl, Refused, Start
from tests.integration.chainctl.sizes import FILLED_ROWS as ROWS
from tests.opened import connected
from tests.stored_pages import LET_TAMPER


@pytest.fixture
def delete_row(module_settings: dict[str, str], filled: int) -> Callable[[int], None]:
    """Deletes a row of the filled chain behind everybody's back."""

    async def delete(row_id: int) -> None:
        async with connected(module_settings["CHAINCTL_DATABASE"]) as connection:
            await connection.execute(LET_TAMPER)
            query = "DELETE FROM chain_event WHERE chain_id = $1 AND id = $2"
            await connection.execute(query, filled, row_id)

    return lambda row_id: asyncio.run(delete(row_id))


@pytest.fixture
def receive(ctl: Ctl, filled_once: int) -> Callable[..., Done]:
    """Calls `chainctl receive` on the filled chain."""
    return lambda path, *options: ctl(
        "receive", "--chain", filled_once, "--output", path, "--json", *options
    )


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_receive_writes_the_chain_up_to_the_head_and_nothing_the_next_time(
    receive: Callable[..., Done], tmp_path: Path, filled_once: int
) -> None:
    path = tmp_path / "j.jsonl"
    first = receive(path)
    assert first.code == 0, first
    summary = json.loads(first.out)
    assert (summary["rows"], summary["first_id"], summary["last_id"]) == (ROWS, 1, ROWS)
    assert f"{ROWS:,} rows" in first.err
    found = lines(path)
    assert list(found[0]) == ["chain_id", "id", "pid", "key", "event_time_ns", "payload"]
    assert [row["id"] for row in found] == list(range(1, ROWS + 1))
    assert {row["chain_id"] for row in found} == {filled_once}
    content = path.read_bytes()
    again = receive(path, "--until-idle", 0.5)
    assert again.code == 0, again
    assert json.loads(again.out)["rows"] == 0
    assert path.read_bytes() == content


def test_receive_with_a_journal_ahead_of_the_database_halts_until_a_person_lifts_it(
    ctl: Ctl, receive: Callable[..., Done], filled_once: int, tmp_path: Path
) -> None:
    path = tmp_path / "ahead.jsonl"
    assert receive(path, "--until", 1).code == 0
    journal = path.read_bytes()
    row = lines(path)[0]
    row.update(id=ROWS + 5, pid=ROWS)
    path.write_text(json.dumps(row, separators=(",", ":")) + "\n")
    done = receive(path)
    assert done.code == 3
    assert f"the database ends at {ROWS}" in done.err
    first = next(line for line in done.err.splitlines() if "the database ends" in line)
    assert ": halted" in first, done
    assert "docs/runbooks/halted-receiver.md" in first
    path.write_bytes(journal)
    again = receive(path)
    assert again.code == 3, "a halt outlives the process"
    assert f"chainctl unhalt ahead.jsonl --chain {filled_once}" in again.err
    assert path.read_bytes() == journal
    chain = ("--chain", filled_once)
    status = ctl.json("status", *chain)
    (halted,) = (line for line in status["receivers"] if line["halted"])
    assert (halted["receiver"], halted["halted"]) == (
        "ahead.jsonl", f"PrimaryBehind at {ROWS + 5}"
    )  # fmt: skip
    ctl.done("unhalt", "ahead.jsonl", *chain, "--reason", "wrong file")
    assert receive(path).code == 0


def test_receive_with_a_name_reports_how_far_it_has_come_and_without_one_does_not(
    ctl: Ctl, receive: Callable[..., Done], filled_once: int, tmp_path: Path
) -> None:
    path = tmp_path / "once.jsonl"
    assert receive(path, "--until", 5).code == 0
    assert receive(path, "--name", "auditor's journal", "--until", 7).code == 0
    lag = ctl("lag", "--chain", filled_once, "--json")
    places = {line["receiver"]: line["head_delivered"] for line in json.loads(lag.out)}
    assert places.get("auditor's journal") == 7
    assert "once.jsonl" not in places


def test_receive_whose_reported_seal_is_contradicted_halts_and_keeps_what_it_reported(
    call: Call, module_settings: dict[str, str], filled: int, tmp_path: Path
) -> None:
    chain, settings = ("--chain", filled), module_settings
    receive = ("receive", *chain, "--output", tmp_path / "h.jsonl", "--name", "h")
    assert call(*receive, settings=settings).code == 0
    head = call("seal", "export", *chain, settings=settings).out.split()[0]

    async def rewrite() -> None:
        """Change an order that the journal does not end with, and every seal over it."""
        async with connected(settings["CHAINCTL_DATABASE"]) as connection:
            for statement in (
                "UPDATE chain_page SET payloads[1] = 'x' WHERE chain_id = $1 AND last_id = "
                "(SELECT max(last_id) FROM chain_batch WHERE chain_id = $1)",
                "UPDATE chain_batch SET seal = sha256(seal) WHERE chain_id = $1 AND last_id = "
                "(SELECT max(last_id) FROM chain_batch WHERE chain_id = $1)",
                "UPDATE chain_head SET last_seal = (SELECT seal FROM chain_batch AS batch WHERE "
                "batch.chain_id = $1 AND batch.last_id = chain_head.last_id) WHERE chain_id = $1",
            ):
                await connection.execute(statement, filled)

    asyncio.run(rewrite())
    for _ in range(2):  # the second start finds what the first one reported unchanged
        halted = call(*receive, settings=settings)
        assert (halted.code, "seal after" in halted.err) == (3, True), halted
    (line,) = json.loads(call("lag", *chain, "--json", settings=settings).out)
    assert (line["agrees"], line["halted"][:12]) == ("another seal", "SealMismatch")
    tried = call("unhalt", "h", *chain, "--reason", "x", "--dry-run", settings=settings)
    assert "it may start, and halts again: the database contradicts its checkpoint" in tried.err
    repair = ("repair", *chain, "--source", "topic", "--reason", "ticket 512")
    assert call(*repair, "--expect-seal", head, settings=settings).code == 0
    unhalt = ("unhalt", "h", *chain, "--reason", "ticket 512")
    assert call(*unhalt, settings=settings).err.endswith("chainctl: it may start\n")
    assert call(*receive, settings=settings).code == 0


def test_receive_stores_the_gap_that_it_stands_before_until_it_has_passed_it(
    ctl: Ctl, filled: int, delete_row: Callable[[int], None], tmp_path: Path
) -> None:
    path = tmp_path / "hole.jsonl"
    delete_row(2_000)
    done = ctl("receive", "--chain", filled, "--output", path)
    assert done.code == 3, done
    assert "rows after 1999 up to 2000 are missing" in done.err
    assert lines(path) == [], "of the batch with the hole nothing proves a row"
    ledger = ctl("gaps", "--chain", filled, "--json")
    (gap,) = json.loads(ledger.out)
    assert (gap["receiver"], gap["after_id"], gap["outcome"]) == ("hole.jsonl", 0, "missing")
    assert (gap["until_id"], gap["source"]) == (2_000, "primary")

    again = ctl("receive", "--chain", filled, "--output", path)
    assert again.code == 3, again
    still = ctl("gaps", "--chain", filled, "--open", "--json")
    assert [gap["until_id"] for gap in json.loads(still.out)] == [2_000]
    repair = ("repair", "--chain", filled, "--source", "topic", "--reason", "ticket 519")
    ctl.done(*repair)
    ctl.done("receive", "--chain", filled, "--output", path)
    still = ctl("gaps", "--chain", filled, "--open", "--json")
    assert json.loads(still.out) == [], "though no place of it is stored"


def test_receive_with_the_read_only_role_alone_writes_the_journal_and_stores_nothing(
    call: Call, refused: Refused, module_settings: dict[str, str], filled_once: int, tmp_path: Path
) -> None:
    settings = {name: module_settings[name] for name in ("CHAINCTL_GAP_DATABASE", "CHAINCTL_KAFKA")}
    arguments = ("receive", "--chain", filled_once, "--output", tmp_path / "ro.jsonl")
    done = call(*arguments, "--until", 9, settings=settings)
    assert done.code == 0, done
    assert [row["id"] for row in lines(tmp_path / "ro.jsonl")] == list(range(1, 10))
    assert "database was ''" in refused(*arguments, "--name", "x", settings=settings)
    read_only = {**settings, "CHAINCTL_DATABASE": module_settings["CHAINCTL_GAP_DATABASE"]}
    line = refused(*arguments, settings=read_only)
    assert "expected a login that is a member of receiver_writer (login gap_reader: " in line
    assert "permission denied for table receiver_" in line


def test_receive_with_kafka_away_at_the_start_is_refused_or_reads_the_database_as_asked(
    call: Call, refused: Refused, module_settings: dict[str, str], filled_once: int, tmp_path: Path
) -> None:
    settings = {**module_settings, "CHAINCTL_KAFKA": "127.0.0.1:1"}
    path = tmp_path / "away.jsonl"
    arguments = ("receive", "--chain", filled_once, "--output", path, "--connect-seconds", "1")
    for flags in ((), ("--kafka-at-start", "required")):
        assert "kafka was '127.0.0.1:1', expected a broker" in refused(
            *arguments, *flags, settings=settings
        )
    assert not path.exists()
    for end in ((), ("--until-idle", "1")):
        done = call(*arguments, "--kafka-at-start", "optional", *end, settings=settings)
        assert done.code == 0, done
        assert [row["id"] for row in lines(path)] == list(range(1, ROWS + 1))
    assert "rows come from the database until it is there" in done.err


def test_receive_with_the_disk_full_ends_with_three_and_goes_on_later(
    start: Start, receive: Callable[..., Done], module_settings: dict[str, str], filled_once: int,
    tmp_path: Path,
) -> None:  # fmt: skip
    path = tmp_path / "j.jsonl"
    limit = 100_000
    process = start(
        "receive", "--chain", filled_once, "--output", path, settings=module_settings,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )  # fmt: skip
    _, err = process.communicate()
    assert process.returncode == 3, err
    assert err.startswith(f"chainctl: {path}: File too large")
    assert err.count("\n") == 1
    assert receive(path).code == 0
    assert [row["id"] for row in lines(path)] == list(range(1, ROWS + 1))


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["ctrl-c", "sigterm"]
)
def test_receive_that_follows_ends_in_good_order_when_asked(
    start: Start, ctl: Ctl, module_settings: dict[str, str], filled: int, tmp_path: Path,
    number: signal.Signals, code: int,
) -> None:  # fmt: skip
    path = tmp_path / "j.jsonl"
    process = start(
        "receive", "--chain", filled, "--output", path, "--follow", "--log-level", "info", "--json",
        settings=module_settings,
    )  # fmt: skip
    assert process.stderr is not None
    shown = ""
    while "live" not in shown:
        shown = process.stderr.readline()
        assert shown, "it ended before it was live"
    ctl.done("sequence", "--chain", filled, "--input", order_file(tmp_path / "p.csv", 1))
    # What is committed may be published, and so be received, after the sequencer has ended.
    asyncio.run(until(lambda: path.read_text().count("\n") > ROWS))
    process.send_signal(number)
    out, err = process.communicate()
    assert process.returncode == code, err
    assert "Traceback" not in err
    assert f"{ROWS + 1:,} rows in" in err
    report = json.loads(out)
    assert (report["rows"], report["stats"]["head_delivered"]) == (ROWS + 1, report["last_id"])


def test_fill_writes_the_missing_rows_with_the_read_only_role(
    call: Call, module_settings: dict[str, str], filled_once: int
) -> None:
    settings = {"CHAINCTL_DATABASE": module_settings["CHAINCTL_GAP_DATABASE"]}
    done = call("fill", "--chain", filled_once, "--after", 7, "--until", 9, settings=settings)
    assert done.code == 0, done
    assert [json.loads(line)["id"] for line in done.out.splitlines()] == [8, 9]
    assert "2 rows" in done.err


def test_fill_over_a_missing_row_ends_with_three_and_hands_on_no_row_of_its_batch(
    ctl: Ctl, filled: int, delete_row: Callable[[int], None]
) -> None:
    delete_row(100)
    done = ctl("fill", "--chain", filled, "--after", 90, "--until", 200)
    assert done.code == 3
    assert done.out == ""
    assert "rows after 99 up to 100 are missing" in done.err


def test_fill_of_ids_that_are_not_there_is_refused(ctl: Ctl, filled_once: int) -> None:
    for after, last, part in (
        (5, 4, "--until was 4"),
        (0, ROWS + 1, f"up to the head of the chain, {ROWS}"),
        (-1, 4, "'--after': -1"),
        (0, 2**63, "'--until'"),
    ):
        line = ctl.refused("fill", "--chain", filled_once, "--after", after, "--until", last)
        assert part in line


def test_fill_up_to_an_id_that_was_left_out_is_refused_and_no_row_is_called_missing(
    ctl: Ctl, filled: int, tmp_path: Path
) -> None:
    ctl.done("sequence", "--chain", filled, "--input", order_file(tmp_path / "more.csv", 1))
    line = ctl.refused("fill", "--chain", filled, "--after", 1, "--until", ROWS + 1)
    assert f"--until was {ROWS + 1}, expected the id of a row" in line
    assert f"the last one before it is {ROWS})" in line


def test_stdout_that_is_closed_or_full_ends_quietly_or_in_one_line(
    start: Start, module_settings: dict[str, str], filled_once: int
) -> None:
    fill = ("fill", "--chain", filled_once, "--after", 0, "--until", ROWS)
    reading, writing = os.pipe()
    os.close(reading)
    process = start(*fill, settings=module_settings, stdout=writing)
    os.close(writing)
    _, err = process.communicate()
    assert (process.returncode, err) == (3, "")
    process = start(*fill, settings=module_settings, stdout=None, preexec_fn=lambda: os.close(1))
    _, err = process.communicate()
    assert (process.returncode, err) == (3, "chainctl: stdout is closed\n")
    with open("/dev/full", "w") as full:  # noqa: PTH123 - a device, not a path of ours
        process = start(*fill, settings=module_settings, stdout=full)
        _, err = process.communicate()
    assert process.returncode == 3
    assert err == "chainctl: No space left on device\n"
