"""`chainctl verify` on what `sequence` and `receive` left behind."""

# ruff: noqa: S608 - every value in a statement is a number of this file

import asyncio
import json
import re
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from aiokafka import TopicPartition
from aiokafka.admin import RecordsToDelete

from chain_kernel.frame import default_topic
from local_stack import KafkaServer
from tests.builders.orders import order_file
from tests.builders.topics import damage_batch
from tests.deadlines import Deadline, deadline
from tests.integration.chainctl.conftest import Admin, Call, Ctl, Refused, Start
from tests.integration.chainctl.sizes import FILLED_ROWS
from tests.opened import connected
from tests.stored_pages import as_owner

DELETED = FILLED_ROWS // 2
SEVERAL = "postgresql://u@127.0.0.1:1,127.0.0.1:2/orders"
WAITS = """
SELECT count(*) > 0 FROM pg_locks JOIN pg_database ON pg_database.oid = pg_locks.database
 WHERE datname = current_database() AND NOT granted
"""

pytestmark = pytest.mark.timeout(300)

IN_SPARK = (
    pytest.mark.nightly,
    # PySpark leaves the socket of every `collect` to the garbage collector.
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
)


def journal_of(call: Call, settings: dict[str, str], chain: int, folder: Path) -> Path:
    """Let a receiver write the journal of a chain, named by its number."""
    path = folder / f"{chain}.jsonl"
    done = call("receive", "--chain", chain, "--output", path, settings=settings)
    assert done.code == 0, done
    return path


@pytest.fixture
def journal(call: Call, module_settings: dict[str, str], filled: int, tmp_path: Path) -> Path:
    """The journal of a receiver of the filled chain."""
    return journal_of(call, module_settings, filled, tmp_path)


def rewrite(settings: dict[str, str], chain: int) -> None:
    """Give the last batch another seal: what only the owner of the tables can do."""
    as_owner(
        settings,
        f"UPDATE chain_batch SET seal = sha256(seal) WHERE chain_id = {chain} AND last_id ="
        f" (SELECT max(last_id) FROM chain_batch WHERE chain_id = {chain})",
        "UPDATE chain_head h SET last_seal = b.seal FROM chain_batch b"
        f" WHERE h.chain_id = {chain} AND b.chain_id = h.chain_id AND b.last_id = h.last_id",
    )


def delete_row(settings: dict[str, str], chain: int, row_id: int) -> None:
    as_owner(settings, f"DELETE FROM chain_event WHERE chain_id = {chain} AND id = {row_id}")


@pytest.mark.nightly
@pytest.mark.usefixtures("spark")
def test_verify_of_two_chains_in_one_spark_finds_the_whole_one_beside_the_damaged_one(
    ctl: Ctl, call: Call, module_settings: dict[str, str], filled_once: int, filled: int,
    journal: Path, tmp_path: Path,
) -> None:  # fmt: skip
    journal_of(call, module_settings, filled_once, tmp_path)
    delete_row(module_settings, filled, DELETED)
    page, folder = tmp_path / "page.html", tmp_path / "findings"
    sources = ("--source", "database", "--source", "topic", "--source")
    done = ctl(
        "verify", "--chain", filled_once, "--chain", filled, *sources,
        f"journal:{tmp_path}/{{chain}}.jsonl", "--json", "--report", page, "--findings", folder,
    )  # fmt: skip
    assert (done.code, done.err) == (1, ""), done
    whole, damaged = json.loads(done.out)["chains"]
    assert (whole["verdict"], whole["head"], whole["is_clean"]) == ("complete", FILLED_ROWS, True)
    assert [source["rows"] for source in whole["sources"]] == [FILLED_ROWS] * 3
    assert [one["is_equal"] for one in whole["comparisons"]] == [True, True]
    assert (damaged["chain_id"], damaged["verdict"]) == (filled, "broken")
    assert damaged["counts"] == {"gap": 1, "surplus": 2}
    (text,) = {one["text"] for one in damaged["findings"] if one["kind"] == "surplus"}
    assert text == f"row {DELETED} is too much, database lacks it"
    assert "1 of 2 chains clean" in page.read_text(encoding="utf-8")
    lines = [
        json.loads(line)
        for part in (folder / "findings.json").glob("*.json")
        for line in part.read_text(encoding="utf-8").splitlines()
    ]
    found = sorted((one["chain"], one["kind"], one.get("source")) for one in lines)
    assert found == [
        (filled, "gap", "database"),
        (filled, "surplus", f"journal:{journal}"),
        (filled, "surplus", "topic"),
    ]


def test_verify_of_all_chains_reports_each_with_the_worst_exit_code(
    ctl: Ctl, filled_once: int, chain: int
) -> None:
    arguments = ("verify", "--local", "--source", "database", "--source", "topic", "--json")
    pair = ("--chain", filled_once, "--chain", chain)
    clean = ctl(*arguments, *pair)
    assert clean.code == 0, clean
    rows = [[one["rows"] for one in of["sources"]] for of in json.loads(clean.out)["chains"]]
    assert rows == [[FILLED_ROWS] * 2, [0, 0]]
    missing = ctl(*arguments, *pair, "--chain", 999)
    assert (missing.code, missing.err) == (2, ""), missing
    outcome = json.loads(missing.out)["chains"][2]
    assert (outcome["chain_id"], outcome["verdict"]) == (999, "not verified")
    every = ctl(*arguments, "--all-chains")
    assert {filled_once, chain} <= {one["chain_id"] for one in json.loads(every.out)["chains"]}


def test_verify_names_the_damaged_record_of_the_chains_topic_and_proves_the_database_without_it(
    ctl: Ctl, kafka_server: KafkaServer, admin: Admin, filled: int, tmp_path: Path
) -> None:
    """As the runbook says: without the source `topic`, until retention has dropped the record."""
    topic = default_topic(filled)
    damage_batch(kafka_server, topic, 0)
    database = ("verify", "--local", "--chain", filled, "--source", "database")
    both = (*database, "--source", "topic")
    line = ctl.refused(*both)
    assert f"record of topic {topic}, partition 0, offset 0" in line
    assert "was 'damaged since it was sent: its checksum is wrong" in line
    shown = ctl.done(*database)
    assert f"chain {filled}: complete (start 0, head {FILLED_ROWS})" in shown
    every = {TopicPartition(topic, 0): RecordsToDelete(before_offset=-1)}
    admin(lambda client: client.delete_records(every))
    ctl.done("sequence", "--chain", filled, "--input", order_file(tmp_path / "more.csv", 100))
    assert f"retention has removed the rows up to {FILLED_ROWS}" in ctl.done(*both)


@pytest.mark.parametrize(
    "mode", [pytest.param(["--local"], marks=pytest.mark.merge), pytest.param([], marks=IN_SPARK)]
)
def test_path_that_looks_like_a_pattern_leads_to_the_file_of_that_name(
    ctl: Ctl, tmp_path: Path, mode: list[str]
) -> None:
    ids = pa.array(range(1, 501), pa.int64())
    table = pa.table(
        {
            "chain_id": pa.array([77] * 500, pa.int32()),
            "id": ids,
            "pid": pa.array(range(500), pa.int64()),
            "key": [f"k{number}" for number in range(500)],
            "event_time_ns": ids,
            "payload": pa.array([b"x"] * 500, pa.binary()),
        }
    )
    pq.write_table(table, tmp_path / "day1.parquet")
    pq.write_table(pa.concat_tables([table[:250], table[251:]]), tmp_path / "day[1].parquet")
    source = f"parquet:{tmp_path}/day[1].parquet"
    done = ctl("verify", *mode, "--chain", 77, "--head", 500, "--source", source, "--json")
    assert done.code == 1, done
    (found,) = json.loads(done.out)["findings"]
    assert (found["kind"], "251" in found["text"]) == ("gap", True), found


def test_verify_with_nothing_to_prove_anything_by_could_not_complete(
    ctl: Ctl, chain: int, tmp_path: Path
) -> None:
    empty = tmp_path / f"{chain}.jsonl"
    empty.touch()
    arguments = ("verify", "--local", "--chain", chain, "--source")
    alone = ctl(*arguments, f"journal:{empty}")
    assert alone.code == 3, alone
    assert f"chain {chain}: not proven (nothing was read)" in alone.out
    shown = ctl(*arguments, f"journal:{empty}", "--json")
    report = json.loads(shown.out)
    assert (shown.code, report["is_clean"], report["counts"]) == (3, False, {})
    assert report["verdict"] == report["sources"][0]["verdict"] == "not proven (nothing was read)"
    ctl.done(*arguments, "database", "--source", f"journal:{empty}")


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        ("journal:missing.jsonl", "missing.jsonl"),
        ("topic", "kafka"),
        ("topics:x", "parquet:PATH"),
        ("database", "database"),
    ],
)
def test_verify_with_a_source_that_cannot_be_used_is_refused_at_once(
    refused: Refused, source: str, shown: str
) -> None:
    assert shown in refused("verify", "--chain", 1, "--source", source)


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        (("--chain", 1), "each chain once"),
        (("--all-chains",), "--all-chains"),
        (("--chain", 2, "--head", 5), "--head"),
        (("--chain", 2, "--expect-seal", "1:aa"), "--expect-seal"),
        (("--chain", 2, "--source", "journal:j.jsonl"), "{chain} in its name"),
        (("--chain", 2, "--source", "topic:t"), "{chain} in its name"),
    ],
)
def test_verify_with_options_that_do_not_go_together_is_refused_naming_one(
    refused: Refused, options: tuple[str | int, ...], shown: str
) -> None:
    assert shown in refused("verify", "--chain", 1, "--source", "database", *options)


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        (("--actor", "eve"), "--actor was 'eve', expected --since-verified"),
        (("--local", "--master", "local"), "--master was"),
        (("--local", "--findings", "here"), "--findings was"),
        (("table", "t"), "--chain belongs after table"),
        (("replay", "m:F"), "--chain belongs after replay"),
        (("--since-verified", "--database", SEVERAL), "target_session_attrs"),
    ],
)
def test_verify_refuses_every_option_that_it_would_not_use(
    refused: Refused, options: tuple[str | int, ...], shown: str
) -> None:
    assert shown in refused("verify", "--chain", 1, "--source", "database", *options)


@pytest.mark.parametrize("option", ["--expect-seal", "--expect-seals"])
def test_seal_that_could_be_held_against_no_database_is_refused(
    refused: Refused, option: str
) -> None:
    line = refused("verify", "--chain", 1, "--source", "topic", option, "1:aa")
    assert f"{option} was '1:aa', expected a source database" in line
    alone = refused("verify", "--chain", 1, "--source", "database", "--seal-public-key", "aa")
    assert "--seal-public-key was 'aa', expected --expect-seals" in alone


def test_verify_without_a_chain_is_refused(refused: Refused) -> None:
    assert "--all-chains" in refused("verify", "--source", "database")


def test_verify_local_needs_no_java_and_names_a_row_deleted_by_hand(
    call: Call, module_settings: dict[str, str], filled: int, journal: Path, tmp_path: Path
) -> None:
    without_java = {name: v for name, v in module_settings.items() if name != "JAVA_HOME"}
    without_java["PATH"] = str(tmp_path)
    sources = ("--source", "database", "--source", f"journal:{journal}")
    clean = call(
        *("verify", "--local", "--chain", filled, *sources), settings=without_java, as_process=True
    )
    assert clean.code == 0, clean
    assert f"chain {filled}: complete (start 0, head {FILLED_ROWS})" in clean.out
    assert clean.err == ""

    delete_row(module_settings, filled, DELETED)
    page = tmp_path / "page.html"
    arguments = ("--local", "--chain", filled, *sources, "--json", "--report", page)
    broken = call("verify", *arguments, settings=without_java)
    assert broken.code == 1, broken
    assert json.loads(broken.out)["counts"] == {"gap": 1, "surplus": 1}
    text = page.read_text(encoding="utf-8")
    assert f"Order {DELETED:,} is missing" in text
    assert 'class="fault"' in text
    nowhere = tmp_path / "missing" / "page.html"
    refused = call("verify", *arguments[:-1], nowhere, settings=without_java)
    assert refused.code == 2, refused


def test_report_names_what_it_was_made_of_and_no_password(
    ctl: Ctl, filled: int, journal: Path, tmp_path: Path
) -> None:
    page = tmp_path / "page.html"
    typed = "postgresql://auditor:hunter2@db.example/orders"
    alone = ("verify", "--local", "--chain", filled, "--source", f"journal:{journal}")
    ctl.done(*alone, "--database", typed, "--report", page)
    text = re.sub(r"<[^>]*>", "", page.read_text(encoding="utf-8"))
    assert f"chainctl verify --local --chain {filled} --source journal:{journal}" in text
    assert "postgresql://auditor:***@db.example/orders" in text
    assert "hunter2" not in text

    arguments = ("verify", "--local", "--chain", filled, "--source", "database", "--seals")
    shown = ctl(*arguments, "--json", "--report", page)
    report = json.loads(shown.out)
    assert (report["head"], report["seals_checked"]) == (FILLED_ROWS, True)
    text = re.sub(r"<[^>]*>", "", page.read_text(encoding="utf-8"))
    assert report["database_id"] in text
    assert f"{report['head_seal']} (recomputed from the rows)" in text
    export = ctl("seal", "export", "--chain", filled)
    assert f"{FILLED_ROWS}:{report['head_seal']}" in export.out


def test_verify_since_verified_goes_on_at_the_mark_and_moves_it_only_when_all_is_whole(
    ctl: Ctl, module_settings: dict[str, str], filled: int, tmp_path: Path
) -> None:
    arguments = ("verify", "--local", "--chain", filled, "--source", "database", "--json")
    since = (*arguments, "--since-verified", "--actor", "eve")
    first = ctl(*since)
    assert (first.code, json.loads(first.out)["start"]) == (0, 0), first
    assert f"the verified mark of chain {filled} is at {FILLED_ROWS}, by eve" in first.err
    again = ctl(*since)
    assert (again.code, json.loads(again.out)["sources"][0]["rows"]) == (0, 0), again
    assert "nothing new" in again.err

    ctl("sequence", "--chain", filled, "--input", order_file(tmp_path / "more.csv", 100))
    head = json.loads(ctl(*arguments).out)["head"]
    delete_row(module_settings, filled, head - 10)
    broken = ctl(*since)
    assert (broken.code, json.loads(broken.out)["start"]) == (1, FILLED_ROWS), broken
    assert "stays: not everything is whole" in broken.err
    assert json.loads(ctl(*since).out)["start"] == FILLED_ROWS
    refused = ctl(*since, "--after", 5)
    assert refused.code == 2, refused


def test_verify_with_a_contradicted_mark_names_it_and_all_else_that_differs(
    ctl: Ctl, module_settings: dict[str, str], filled: int, tmp_path: Path
) -> None:
    arguments = ("verify", "--local", "--chain", filled, "--source", "database", "--json")
    since = (*arguments, "--since-verified", "--actor", "eve")
    ctl.done(*since)
    delete_row(module_settings, filled, DELETED)
    rewrite(module_settings, filled)
    page = tmp_path / "page.html"
    for asked in ((*since, "--report", page), arguments, (*arguments, "--after", 0)):
        done = ctl(*asked)
        assert done.code == 1, done
        report = json.loads(done.out)
        assert (report["start"], report["head"], report["verdict"]) == (0, FILLED_ROWS, "broken")
        kinds = {one["kind"]: one for one in report["findings"]}
        # The last batch has lost the row, or has a seal that is not its own.
        assert {"batch_count", "contradicted_mark", "gap"} <= set(kinds)
        assert kinds["gap"]["until_id"] == DELETED
        mark = kinds["contradicted_mark"]
        assert (mark["after_id"], mark["until_id"], mark["count"]) == (0, FILLED_ROWS, 1)
        assert (mark["verified_by"], mark["verified_at"][-6:]) == ("eve", "+00:00")
        assert len(mark["seal"]) == len(mark["expected_seal"]) == 64
        assert mark["seal"] != mark["expected_seal"]
        assert "'A contradicted mark', says what then" in mark["text"]
    assert "Contradicted mark: the rows after 0 up to" in page.read_text(encoding="utf-8")
    archive = ("--chain", filled, "--archive", tmp_path / "archive")
    for command in (("archive", *archive), ("retention", *archive, "--until", 1)):
        refused = ctl(*command)
        assert (refused.code, refused.out) == (2, ""), refused
        assert f"seal after {FILLED_ROWS}, verified by eve was" in refused.err
        assert "chainctl verify names what differs" in refused.err
    assert not (tmp_path / "archive").exists()


def test_verify_with_keys_names_two_rows_under_one_key(
    ctl: Ctl, module_settings: dict[str, str], filled: int
) -> None:
    arguments = ("verify", "--local", "--chain", filled, "--source", "database")
    clean = ctl(*arguments, "--keys")
    assert (clean.code, "), keys compared" in clean.out) == (0, True), clean
    key = f"SELECT key FROM chain_event WHERE chain_id = {filled} AND id = 3"
    same = f"UPDATE chain_event SET key = ({key}) WHERE chain_id = {filled} AND id = 9"
    as_owner(module_settings, same)
    without = ctl(*arguments)
    assert (without.code, "), keys not compared" in without.out) == (0, True), without
    found = ctl(*arguments, "--keys", "--key-window-rows", 6, "--json")
    assert found.code == 1, found
    (finding,) = json.loads(found.out)["findings"]
    assert (finding["kind"], finding["ids"]) == ("repeated_key", [3, 9])


OFTEN = """
import sys
from chainctl import output
from chainctl.main import main
output.LINE_SECONDS = 0.1
sys.exit(main())
"""


def test_start_of_spark_is_shown_where_stderr_is_no_terminal(
    start: Start, module_settings: dict[str, str], filled_once: int
) -> None:
    arguments = ("verify", "--chain", filled_once, "--source", "database")
    process = start(*arguments, settings=module_settings, script=OFTEN)
    assert process.stderr is not None
    line = process.stderr.readline()
    assert re.fullmatch(r"chainctl: verifying: (verifying|starting Spark), \d+ s so far\n", line)
    while "starting Spark" not in line:
        line = process.stderr.readline()
        assert line, "it has ended"
    process.terminate()
    assert process.wait() == 143


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["ctrl-c", "sigterm"]
)
@pytest.mark.parametrize("mode", [(), ("--local",)], ids=["spark", "local"])
def test_verify_that_is_ended_while_it_waits_for_the_database_ends_at_once(
    start: Start, module_settings: dict[str, str], filled_once: int, tmp_path: Path,
    mode: tuple[str, ...], number: signal.Signals, code: int,
) -> None:  # fmt: skip
    files = tmp_path / "files"
    files.mkdir()

    async def interrupt() -> tuple[int | None, str, str]:
        database = module_settings["CHAINCTL_DATABASE"]
        async with connected(database) as locking, locking.transaction():
            await locking.execute("LOCK TABLE chain_page IN ACCESS EXCLUSIVE MODE")
            process = start(
                "verify", "--chain", filled_once, "--source", "database", *mode,
                settings={**module_settings, "TMPDIR": str(files)},
            )  # fmt: skip
            async with deadline():
                while not await locking.fetchval(WAITS):
                    assert process.poll() is None, process.communicate()
                    await asyncio.sleep(0.05)
            process.send_signal(number)
            out, err = await asyncio.to_thread(process.communicate)
        return process.returncode, out, err

    ended, out, err = asyncio.run(interrupt())
    assert (ended, out) == (code, ""), err
    assert "Traceback" not in err
    assert list(files.glob("chain-verifier-*")) == []


def children_of(process_id: int) -> dict[int, str]:
    """Return the processes that a process has started, and their programs."""
    found: dict[int, str] = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            name, _, rest = status.read_text().rpartition(")")
            if int(rest.split()[1]) == process_id:
                found[int(status.parent.name)] = name.partition("(")[2]
    return found


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["ctrl-c", "sigterm"]
)
def test_verify_that_is_ended_while_spark_starts_leaves_no_java_and_no_folder(
    start: Start, module_settings: dict[str, str], filled_once: int, tmp_path: Path,
    number: signal.Signals, code: int,
) -> None:  # fmt: skip
    """Only this process knows Java before it has answered: otherwise it would stay."""
    files = tmp_path / "files"
    files.mkdir()
    process = start(
        "verify", "--chain", filled_once, "--source", "database",
        settings={**module_settings, "TMPDIR": str(files)},
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    bound = Deadline()
    while "java" not in (started := children_of(process.pid)).values():
        assert process.poll() is None
        assert bound.left() > 0
        time.sleep(0.01)
    process.send_signal(number)
    assert process.wait() == code
    assert [child for child in started if Path(f"/proc/{child}").exists()] == []
    assert list(files.iterdir()) == []
