"""`chainctl archive` and `retention` on what `sequence` left, and receivers that come later."""

# ruff: noqa: S608 - every value in a statement is a number of this file

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chain_kernel.model import Event
from chain_verifier.archive.archived_rows import SOURCE, ArchivedRows
from chain_verifier.archive.backed_source import ArchiveBackedSource
from gapfill import GapReader, GapReaderConfig
from matcher_receiver import KafkaFrameSource, KafkaSourceConfig, Receiver, ReceiverConfig
from tests.builders.orders import order_file
from tests.integration.chainctl.conftest import Call, Ctl, Refused
from tests.stored_pages import as_owner
from tests.tuned import tuned

Retention = Callable[..., Any]

ROWS = 300
MORE = 40
PARTITION_IDS = 100


def sequence_of(chain: int, orders: Path) -> tuple[object, ...]:
    """The call that sequences a file in batches that fit into the narrow partitions."""
    return ("sequence", "--chain", chain, "--input", orders, "--batch-rows", 20)


def ids_of(journal: Path) -> list[int]:
    return [json.loads(line)["id"] for line in journal.read_text().splitlines()]


@pytest.fixture
def archived(
    call: Call, module_settings: dict[str, str], free_chain: int, tmp_path: Path
) -> tuple[int, int]:
    """A chain of narrow partitions, verified and archived to its head; its id, and the head."""
    chain, settings = free_chain, module_settings
    call("chain", "create", chain, "--partition-ids", PARTITION_IDS, settings=settings)
    orders = order_file(tmp_path / "o.csv", ROWS)
    call(*sequence_of(chain, orders), settings=settings)
    since = ("--local", "--chain", chain, "--source", "database", "--since-verified")
    assert call("verify", *since, settings=settings).code == 0
    done = call(
        *("archive", "--chain", chain, "--archive", tmp_path / "archive", "--json"),
        settings=settings,
    )
    assert done.code == 0, done
    return chain, json.loads(done.out)["last_id"]


@pytest.fixture
def retain(ctl: Ctl, archived: tuple[int, int], tmp_path: Path) -> Retention:
    def run(until_id: int, *arguments: object) -> Any:
        here = ("--chain", archived[0], "--archive", tmp_path / "archive")
        return ctl("retention", *here, "--until", until_id, *arguments)

    return run


def test_retention_above_what_anybody_needs_is_refused_in_a_line(
    ctl: Ctl, archived: tuple[int, int], retain: Retention, tmp_path: Path
) -> None:
    chain, head = archived
    # A chain shorter than the window: every key is still looked up, though no page says so.
    in_window = retain(1)
    assert in_window.code == 2, in_window
    assert "before the window of keys of 1,000,000 rows" in in_window.err
    above = retain(head + 1, "--key-window-rows", 0)
    assert (above.code, "the verified mark" in above.err) == (2, True), above
    slow = tmp_path / "slow.jsonl"
    receive = ("receive", "--chain", chain, "--output", slow, "--name", "slow")
    ctl.done(*receive, "--until", 120)
    needed = retain(121, "--key-window-rows", 0)
    assert (needed.code, "the checkpoint of receiver 'slow'" in needed.err) == (2, True), needed
    check = ("archive", "--chain", chain, "--archive", tmp_path / "archive", "--check")
    whole = ctl(*check)
    assert (whole.code, f"whole; {ROWS} rows" in whole.out) == (0, True), whole
    (file, *_) = sorted((tmp_path / "archive").glob("chain-*/rows-*.parquet"))
    file.write_bytes(file.read_bytes()[:-1])
    heard = ctl(*check)
    assert (heard.code, "is not the file that was written" in heard.out) == (1, True), heard
    broken = retain(120, "--key-window-rows", 0)
    assert (broken.code, "expected an archive that verifies" in broken.err) == (2, True), broken


def tables_of(settings: dict[str, str], chain: int) -> list[str]:
    """The tables of a chain's pages, attached or not."""
    pages = f"relname ~ '^chain_page_{chain}_[0-9]+$' AND relkind = 'r'"
    return [
        name
        for (name,) in as_owner(settings, f"SELECT relname FROM pg_class WHERE {pages} ORDER BY 1")
    ]


def test_retention_drops_what_it_detaches_and_what_was_detached_before(
    ctl: Ctl, module_settings: dict[str, str], archived: tuple[int, int], retain: Retention
) -> None:
    chain, head = archived
    before = tables_of(module_settings, chain)
    why = ("--drop", "--reason", "the disk fills, ticket 518", "--actor", "eve", "--json")
    window = ("--key-window-rows", 0)
    first = json.loads(retain(PARTITION_IDS, *window, "--json").out)["partitions"]
    assert first == [f"chain_page_{chain}_0"]
    assert tables_of(module_settings, chain) == before, "detached alone, it is still there"

    tried = json.loads(retain(head - 1, *window, *why, "--dry-run").out)
    assert (tried["is_done"], tried["act_id"]) == (False, None)
    assert [table["name"] for table in tried["dropped"]] == first
    assert tables_of(module_settings, chain) == before, "a dry run drops nothing"
    noted = retain(head - 1, *window, *why[:3], "--dry-run").out
    assert f"dropped: {', '.join([*first, *tried['partitions']])} (" in noted
    size = tried["bytes"] + sum(table["bytes"] for table in tried["dropped"])
    assert f" ({size:,} bytes)" in noted
    assert tried["bytes"] > 0
    done = retain(head - 1, *window, *why)
    assert done.code == 0, done
    found = json.loads(done.out)
    gone = [table["name"] for table in found["dropped"]]
    assert gone == sorted([*first, *found["partitions"]])
    left = len(ctl.json("tail", "--chain", chain, "--limit", ROWS))
    assert 0 < left == ROWS - sum(table["rows"] for table in found["dropped"])
    assert tables_of(module_settings, chain) == sorted(set(before) - set(gone))
    assert retain(head - 1, *window, *why[:3]).out.count(": none") == 2, "nothing is left to do"

    shown = ctl("show", 1, "--chain", chain)
    alone = f"has no row 1: rows up to {found['boundary_id']} are in the archive alone"
    assert (shown.code, alone in shown.err) == (1, True), shown

    acts = ctl.json("acts", "--chain", chain)
    assert [(act["act_id"], act["act"], act["actor"], act["reason"]) for act in acts[:2]] == [
        (found["act_id"], "drop", "eve", why[2]), (acts[1]["act_id"], "retention", "eve", why[2]),
    ]  # fmt: skip
    assert all(name in acts[0]["detail"] for name in gone)


def test_topic_that_still_has_the_archived_rows_is_no_finding(
    ctl: Ctl, archived: tuple[int, int], retain: Retention
) -> None:
    """The topic keeps its frames for a week, whatever retention does meanwhile."""
    chain, head = archived
    verify = ("verify", "--local", "--chain", chain, "--source", "database", "--source", "topic")
    ctl.done(*verify)
    done = retain(
        head - 1, "--key-window-rows", 0, "--drop", "--reason", "the disk fills", "--json"
    )
    boundary = json.loads(done.out)["boundary_id"]
    report = ctl.json(*verify)
    assert (report["start"], report["findings"]) == (boundary, [])
    (topic,) = (one for one in report["sources"] if one["source"] == "topic")
    assert any(note.startswith("of rows that are archived: ") for note in topic["notes"])


def test_retention_drops_no_table_that_the_archive_does_not_hold(
    module_settings: dict[str, str], archived: tuple[int, int], retain: Retention, tmp_path: Path
) -> None:
    chain, _ = archived
    why = ("--key-window-rows", 0, "--drop", "--reason", "the disk fills")
    without = retain(1, "--drop")
    assert (without.code, "--reason was not given, expected" in without.err) == (2, True), without
    assert retain(PARTITION_IDS, "--key-window-rows", 0).code == 0
    before = tables_of(module_settings, chain)

    # More rows than the archive has of these ids: somebody has added some.
    as_owner(
        module_settings,
        f"INSERT INTO chain_page_{chain}_0 SELECT chain_id, last_id - 1, last_id - 1, "
        "ARRAY[last_id - 1], ARRAY[0], ARRAY['k'], ARRAY[0], ARRAY['x'::bytea] "
        f"FROM chain_page_{chain}_0 WHERE first_id = 1",
    )
    changed = retain(PARTITION_IDS, *why)
    assert (changed.code, "which the archive holds" in changed.err) == (2, True), changed
    # Rows that the chain still has: somebody else has detached them.
    as_owner(
        module_settings,
        f"DELETE FROM chain_page_{chain}_0 WHERE keys = ARRAY['k']",
        f"ALTER TABLE chain_page_{chain} DETACH PARTITION chain_page_{chain}_1",
    )
    own = retain(2 * PARTITION_IDS + 50, *why)
    assert (own.code, "attach it" in own.err) == (2, True), own
    (file, *_) = sorted((tmp_path / "archive").glob("chain-*/rows-*.parquet"))
    file.write_bytes(file.read_bytes()[:-1])
    broken = retain(PARTITION_IDS, *why)
    assert (broken.code, "expected an archive that verifies" in broken.err) == (2, True), broken
    assert tables_of(module_settings, chain) == before


def test_a_receiver_older_than_the_database_catches_up_from_the_archive(
    ctl: Ctl, archived: tuple[int, int], retain: Retention, tmp_path: Path
) -> None:
    chain, head = archived
    done = retain(head - 1, "--key-window-rows", 0, "--json")
    assert done.code == 0, done
    boundary = json.loads(done.out)["boundary_id"]
    assert 0 < boundary < head
    assert len(json.loads(done.out)["partitions"]) == boundary // PARTITION_IDS + 1

    receive = ("receive", "--chain", chain, "--output")
    without = ctl(*receive, tmp_path / "without.jsonl")
    assert without.code == 3, without
    noted = f"rows after 0 up to {boundary} were archived; --archive DIR reads them from an archive"
    assert noted in without.err
    assert ids_of(tmp_path / "without.jsonl") == []

    journal = tmp_path / "with.jsonl"
    with_archive = (*receive, journal, "--archive", tmp_path / "archive")
    ctl.done(*with_archive, "--until", boundary // 2)
    assert ids_of(journal)[-1] == boundary // 2
    ctl.done(*with_archive)
    assert (len(ids_of(journal)), ids_of(journal)[-1]) == (ROWS, head)
    verify = ("verify", "--local", "--chain", chain, "--after", 0, "--head", head)
    rows = (tmp_path / "archive" / f"chain-{chain}").glob("rows-*.parquet")
    assert any(rows)
    ctl.done(
        *(*verify, "--source", f"journal:{journal}"),
        *("--source", f"parquet:{tmp_path / 'archive' / f'chain-{chain}'}"),
    )  # fmt: skip

    (file, *_) = sorted((tmp_path / "archive").glob("chain-*/rows-*.parquet"))
    file.write_bytes(file.read_bytes()[:-1])
    broken = ctl(*(*receive, tmp_path / "broken.jsonl", "--archive", tmp_path / "archive"))
    assert (broken.code, "expected an archive that verifies" in broken.err) == (2, True), broken
    assert ids_of(tmp_path / "broken.jsonl") == []


async def test_a_receiver_from_the_beginning_goes_from_the_archive_to_the_database_to_live(
    call: Call,
    module_settings: dict[str, str],
    archived: tuple[int, int],
    retain: Retention,
    tmp_path: Path,
) -> None:
    chain, head = archived
    retained = await asyncio.to_thread(retain, head - 1, "--key-window-rows", 0)
    assert retained.code == 0, retained
    reader = GapReader(
        GapReaderConfig(database=module_settings["CHAINCTL_GAP_DATABASE"], chain_id=chain)
    )
    topic = (await reader.standing(0)).head.topic
    frames = KafkaFrameSource(
        KafkaSourceConfig(kafka=module_settings["CHAINCTL_KAFKA"], topic=topic)
    )
    source = ArchiveBackedSource(reader, ArchivedRows(tmp_path / "archive", chain))
    events: list[Event] = []
    sources: set[str] = set()
    orders = order_file(tmp_path / "o.csv", ROWS + MORE)
    more: asyncio.Task[Any] | None = None
    # Not polled: on a slow machine a poll would bring the last rows before their frame does.
    config = tuned(ReceiverConfig(chain_id=chain), poll_after_seconds=600.0)
    async with Receiver(config, frames, source) as receiver:

        async def add_once_live() -> None:
            await receiver.live.wait()
            done = await asyncio.to_thread(
                call, *sequence_of(chain, orders), settings=module_settings
            )
            assert done.code == 0, done

        more = asyncio.create_task(add_once_live())
        async for run in receiver:
            events += run.events
            sources.add(run.source)
            if len(events) == ROWS + MORE:
                break
        await more
    assert [event.pid for event in events] == [0, *(event.id for event in events[:-1])]
    assert sources >= {SOURCE, "primary", ""}


@pytest.mark.parametrize(
    "command", [("archive",), ("archive", "--check"), ("retention", "--until", 5)]
)
def test_an_archive_at_a_url_that_nothing_reads_is_refused_and_no_folder_is_made(
    call: Call, tmp_path: Path, command: tuple[object, ...]
) -> None:
    done = call(
        *command, "--chain", 1, "--archive", "ssh://bucket/archive",
        settings={"CHAINCTL_DATABASE": "postgresql://x@127.0.0.1:1/x"}, cwd=tmp_path,
    )  # fmt: skip
    assert done.code == 2, done
    assert "--archive was 'ssh://bucket/archive', expected a URL that can be used" in done.err
    assert list(tmp_path.iterdir()) == []


def test_end_of_what_is_written_is_refused_where_nothing_is_written(
    refused: Refused, tmp_path: Path
) -> None:
    check = ("archive", "--chain", 1, "--archive", tmp_path / "archive", "--check")
    assert "--until" in refused(*check, "--until", 5)
