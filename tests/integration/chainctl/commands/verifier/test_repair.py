"""`chainctl repair`: what a database lacks is written back where seals prove it, and only there."""

# ruff: noqa: S608 - every value in a statement is a number of this file

import asyncio
import json
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from chain_kernel.errors import RetryError
from chain_kernel.frame import encode_frame
from chain_kernel.model import Event
from chain_kernel.sql import AUDITOR
from chain_kernel.testing.memory_chain import sealed, slices_of
from chain_verifier.config import JournalSource, TopicSource
from chain_verifier.repair.repair import RepairPlan, RepairRequest, repair_chain
from local_stack import PostgresServer
from tests.deadlines import Deadline
from tests.integration.chainctl.conftest import Call, Refused, Start
from tests.stored_pages import as_owner

Settings = dict[str, str]

ROWS = 300
BATCH_ROWS = 20
FRAME_BYTES = 512 * 1024
PARTITION_IDS = 100
WHY = ("--reason", "a drill, ticket 517", "--actor", "eve")
NO_TRIGGERS = "SET session_replication_role = replica"


def stored(settings: Settings, chain: int) -> list[list[Any]]:
    """All that is stored of a chain: entries of batches, and rows."""
    return [
        as_owner(settings, f"SELECT * FROM {table} WHERE chain_id = {chain} ORDER BY {order}")
        for table, order in (("chain_batch", "last_id"), ("chain_event", "id"))
    ]


def lose_tail(settings: Settings, chain: int, after_id: int) -> None:
    """Put a chain back to where it was after a batch, as a restored backup does."""
    as_owner(
        settings,
        NO_TRIGGERS,
        f"DELETE FROM chain_page WHERE chain_id = {chain} AND last_id > {after_id}",
        f"DELETE FROM chain_batch WHERE chain_id = {chain} AND last_id > {after_id}",
        f"DELETE FROM chain_verified WHERE chain_id = {chain} AND until_id > {after_id}",
        f"UPDATE chain_head SET last_id = {after_id}, published_id = least(published_id, "
        f"{after_id}), last_seal = (SELECT seal FROM chain_batch WHERE chain_id = {chain} "
        f"AND last_id = {after_id}) WHERE chain_id = {chain}",
    )


@pytest.fixture
def whole(call: Call, module_settings: Settings, free_chain: int, tmp_path: Path) -> int:
    """A chain of narrow partitions, published, received, verified and archived to its head."""
    chain, settings = free_chain, module_settings
    orders = tmp_path / "o.csv"
    orders.write_text("n\n" + "".join(f"{number}\n" for number in range(ROWS)))
    for arguments in (
        ("chain", "create", chain, "--partition-ids", PARTITION_IDS),
        ("sequence", "--chain", chain, "--input", orders, "--batch-rows", BATCH_ROWS),
        ("receive", "--chain", chain, "--output", tmp_path / "j.jsonl"),
        ("verify", "--local", "--chain", chain, "--source", "database", "--since-verified"),
        ("archive", "--chain", chain, "--archive", tmp_path / "archive"),
    ):
        done = call(*arguments, settings=settings)
        assert done.code == 0, done
    return chain


@pytest.fixture
def fix(
    call: Call, module_settings: Settings, whole: int, tmp_path: Path
) -> Callable[..., tuple[int, Any]]:
    """Repairs the chain, and returns exit code and what JSON shows."""

    def run(source: str, *options: object) -> tuple[int, Any]:
        named = {"journal": f"journal:{tmp_path}/j.jsonl", "archive": f"archive:{tmp_path}/archive"}
        done = call(
            *("repair", "--chain", whole, "--from", named.get(source, source), "--json"),
            *(*WHY, *options),
            settings=module_settings,
        )
        assert done.code in (0, 1), done
        return done.code, json.loads(done.out)

    return run


def is_whole(call: Call, settings: Settings, chain: int) -> bool:
    here = ("verify", "--local", "--chain", chain, "--source", "database", "--seals")
    return call(*here, settings=settings).code == 0


def last_ids(settings: Settings, chain: int) -> list[int]:
    query = f"SELECT last_id FROM chain_batch WHERE chain_id = {chain} ORDER BY last_id"
    return [last_id for (last_id,) in as_owner(settings, query)]


def ranges(pieces: list[Any]) -> list[tuple[str, int, int]]:
    return [(each["what"], each["after_id"], each["until_id"]) for each in pieces]


# ------------------------------------------------------------------------------ within the chain


@pytest.mark.merge
@pytest.mark.parametrize("source", ["topic", "journal", "archive"])
def test_changed_and_missing_pages_come_back_from_each_source(
    call: Call,
    module_settings: Settings,
    whole: int,
    fix: Callable[..., tuple[int, Any]],
    source: str,
) -> None:
    settings = module_settings
    before = stored(settings, whole)
    ends = last_ids(settings, whole)
    as_owner(
        settings,
        f"UPDATE chain_event SET payload = 'other' WHERE chain_id = {whole} AND id = 25",
        f"DELETE FROM chain_event WHERE chain_id = {whole} AND id = 70",
        f"DELETE FROM chain_page WHERE chain_id = {whole} AND last_id > {ends[6]} "
        f"AND last_id <= {ends[8]}",
        f"DROP TABLE chain_page_{whole}_2",
    )
    assert not is_whole(call, settings, whole)
    damaged = stored(settings, whole)

    code, tried = fix(source, "--dry-run")
    assert (code, tried["act_id"], tried["left"]) == (0, None, [])
    assert stored(settings, whole) == damaged, "a dry run writes nothing"
    code, done = fix(source)
    assert (code, done["left"]) == (0, [])
    assert done["written"] == tried["written"]
    assert stored(settings, whole) == before
    assert is_whole(call, settings, whole)
    assert fix(source)[1]["batches"] == 0, "nothing is left to do"

    (act,) = json.loads(call("acts", "--chain", whole, "--json", settings=settings).out)
    assert (act["act"], act["actor"], act["reason"]) == ("repair", "eve", WHY[1])
    assert act["act_id"] == done["act_id"]
    assert act["detail"].startswith(f"{done['batches']} batches, {done['rows']} rows from {source}")


def test_batch_that_was_published_in_slices_comes_back_from_the_topic(
    call: Call, module_settings: Settings, chain: int, tmp_path: Path
) -> None:
    settings = module_settings
    orders = tmp_path / "large.csv"
    orders.write_text("n\n" + "".join(f"{number}{'x' * 20_000}\n" for number in range(200)))
    assert call("sequence", "--chain", chain, "--input", orders, settings=settings).code == 0
    before = stored(settings, chain)
    batch = max(before[0], key=lambda entry: entry[4])
    assert batch[4] * 20_000 > FRAME_BYTES, "the batch is longer than a frame"
    as_owner(settings, f"DELETE FROM chain_page WHERE chain_id = {chain}", "SELECT 1")
    repaired = call("repair", "--chain", chain, "--from", "topic", *WHY, settings=settings)
    assert repaired.code == 0, repaired
    assert stored(settings, chain) == before
    assert is_whole(call, settings, chain)


@pytest.mark.parametrize("source", ["topic", "archive"])
def test_batches_whose_entries_are_gone_come_back_with_their_time(
    call: Call,
    module_settings: Settings,
    whole: int,
    fix: Callable[..., tuple[int, Any]],
    source: str,
) -> None:
    settings = module_settings
    before = stored(settings, whole)
    ends = last_ids(settings, whole)
    as_owner(
        settings,
        NO_TRIGGERS,
        f"DELETE FROM chain_page WHERE chain_id = {whole} AND last_id IN ({ends[3]}, {ends[4]})",
        f"DELETE FROM chain_batch WHERE chain_id = {whole} AND last_id IN ({ends[3]}, {ends[4]})",
        f"UPDATE chain_batch SET committed_at = committed_at + interval '1 us' "
        f"WHERE chain_id = {whole} AND last_id = {ends[8]}",
        f"UPDATE chain_batch SET seal = sha256(seal) WHERE chain_id = {whole} "
        f"AND last_id IN ({ends[6]}, {ends[-1]})",
    )
    code, done = fix(source)
    assert (code, done["left"]) == (0, [])
    assert ("entry", ends[2], ends[4]) in ranges(done["written"])
    assert ("entry", ends[7], ends[8]) in ranges(done["written"])
    assert stored(settings, whole) == before
    assert is_whole(call, settings, whole)


@pytest.mark.merge
def test_rows_that_do_not_give_the_seal_are_never_written(
    module_settings: Settings,
    whole: int,
    fix: Callable[..., tuple[int, Any]],
    tmp_path: Path,
) -> None:
    """The journal was changed as the database was: what both say is still not what was sealed."""
    journal = tmp_path / "j.jsonl"
    lines = journal.read_text().splitlines(keepends=True)
    row = json.loads(lines[24])
    lines[24] = json.dumps({**row, "payload": "b3RoZXI="}) + "\n"
    journal.write_text("".join(lines))
    as_owner(
        module_settings,
        f"UPDATE chain_event SET payload = 'other' WHERE chain_id = {whole} AND id = {row['id']}",
    )
    damaged = stored(module_settings, whole)
    code, done = fix("journal")
    assert (code, done["batches"], done["act_id"]) == (1, 0, None)
    assert "does not have the seal of its rows" in done["left"][0]["why"]
    assert stored(module_settings, whole) == damaged


def test_batch_that_is_changed_after_the_plan_ends_the_repair_with_nothing_done(
    module_settings: Settings, whole: int, tmp_path: Path
) -> None:
    ends = last_ids(module_settings, whole)
    as_owner(module_settings, f"DELETE FROM chain_page WHERE chain_id = {whole}", "SELECT 1")
    seen: list[RepairPlan] = []

    def change(plan: RepairPlan) -> None:
        seen.append(plan)
        as_owner(
            module_settings,
            f"UPDATE chain_batch SET seal = sha256(seal) WHERE chain_id = {whole} "
            f"AND last_id = {ends[7]}",
        )

    request = RepairRequest(
        chain_id=whole,
        database=module_settings["CHAINCTL_DATABASE"],
        source=JournalSource(path=str(tmp_path / "j.jsonl")),
        actor="eve",
        reason="a drill",
    )
    with pytest.raises(RetryError, match=f"ends at {ends[7]} was changed meanwhile"):
        repair_chain(request, change, lambda line: None)
    assert seen[0].rows == ROWS
    assert stored(module_settings, whole)[1] == []


def test_leader_goes_on_while_pages_below_its_head_are_repaired(
    call: Call,
    start: Start,
    module_settings: Settings,
    whole: int,
    fix: Callable[..., tuple[int, Any]],
    make_topic: Callable[..., None],
    head_after: Callable[[int], None],
    send: Callable[..., None],
) -> None:
    head = last_ids(module_settings, whole)[-1]
    make_topic(f"orders-{whole}")
    leader = intake(start, module_settings, whole)
    send(f"orders-{whole}", "a", "b")
    head_after(head)
    as_owner(
        module_settings,
        f"UPDATE chain_event SET payload = 'other' WHERE chain_id = {whole} AND id = 25",
    )
    assert fix("topic")[0] == 0
    now = last_ids(module_settings, whole)[-1]
    send(f"orders-{whole}", "c")
    head_after(now)
    assert ended(leader)[0] == 143
    assert is_whole(call, module_settings, whole)


def test_batches_that_are_committed_meanwhile_are_neither_damage_nor_a_lost_tail(
    call: Call, module_settings: Settings, whole: int, tmp_path: Path
) -> None:
    plans: list[RepairPlan] = []
    more = tmp_path / "more.csv"
    more.write_text("n\n1\n2\n")
    sequence = ("sequence", "--chain", whole, "--input", more)

    def commit(line: str) -> None:
        if line.startswith("comparing"):
            assert call(*sequence, settings=module_settings).code == 0

    request = RepairRequest(
        chain_id=whole,
        database=module_settings["CHAINCTL_DATABASE"],
        source=TopicSource(kafka=module_settings["CHAINCTL_KAFKA"]),
        actor="eve",
        reason="a drill",
    )
    done = repair_chain(request, plans.append, commit)
    assert (done.act_id, plans[0].batches, plans[0].left) == (None, 0, ())
    assert plans[0].head == last_ids(module_settings, whole)[-1], "the new batch is compared, too"


# --------------------------------------------------------------------------------- after the head


@pytest.mark.merge
def test_tail_that_a_restore_has_lost_comes_back_from_the_topic(
    call: Call,
    module_settings: Settings,
    whole: int,
    fix: Callable[..., tuple[int, Any]],
    tmp_path: Path,
) -> None:
    settings = module_settings
    before = stored(settings, whole)
    ends = last_ids(settings, whole)
    lose_tail(settings, whole, ends[5])
    assert fix("journal") == (1, {**fix("journal")[1]}), "a journal alone proves no tail"

    code, done = fix("topic")
    assert (code, ranges(done["written"])) == (0, [("tail", ends[5], ends[-1])])
    assert (done["head"], done["head_after"]) == (ends[5], ends[-1])
    assert stored(settings, whole) == before, "the times of the commits, too"
    assert is_whole(call, settings, whole)
    status = json.loads(call("status", "--chain", whole, "--json", settings=settings).out)
    assert (status["head_persisted"], status["leader_state"]) == (ends[-1], "handed over")

    # The next leader knows the keys of these rows: the same file adds nothing a second time.
    again = ("sequence", "--chain", whole, "--input", tmp_path / "o.csv")
    assert call(*again, settings=settings).code == 0
    assert last_ids(settings, whole) == ends
    more = tmp_path / "more.csv"
    more.write_text("n\n1\n")
    assert call("sequence", "--chain", whole, "--input", more, settings=settings).code == 0
    # A receiver that had all of it goes on.
    receive = ("receive", "--chain", whole, "--output", tmp_path / "j.jsonl")
    assert call(*receive, settings=settings).code == 0
    assert is_whole(call, settings, whole)


def test_tail_of_a_term_that_the_restore_has_lost_needs_a_kept_seal(
    call: Call, module_settings: Settings, whole: int, fix: Callable[..., tuple[int, Any]],
    tmp_path: Path,
) -> None:  # fmt: skip
    settings = module_settings
    head = last_ids(settings, whole)[-1]
    (epoch,) = as_owner(settings, f"SELECT epoch, nonce FROM chain_head WHERE chain_id = {whole}")
    more = tmp_path / "more.csv"
    more.write_text("n\n1\n2\n3\n")
    sequence = ("sequence", "--chain", whole, "--input", more, "--batch-rows", 1)
    assert call(*sequence, settings=settings).code == 0
    before = stored(settings, whole)
    ends = last_ids(settings, whole)
    seals = {last: row[6].hex() for last, row in zip(ends, before[0], strict=True)}
    vault = tmp_path / "vault"
    export = ("seal", "export", "--chain", whole, "--to", vault)
    assert call(*export, settings=settings).code == 0
    lose_tail(settings, whole, head)
    as_owner(
        settings,
        f"DELETE FROM chain_term WHERE chain_id = {whole} AND epoch > {epoch[0]}",
        f"UPDATE chain_head SET epoch = {epoch[0]}, nonce = '\\x{epoch[1].hex()}' "
        f"WHERE chain_id = {whole}",
    )
    code, done = fix("topic")
    assert (code, done["batches"]) == (1, 0)
    assert "--expect-seal" in done["left"][0]["why"]
    code, done = fix("topic", "--expect-seal", f"{ends[-1]}:{'ab' * 32}")
    assert (code, done["batches"]) == (1, 0), "a seal to which they do not lead proves nothing"
    # The seal of the last batch but one proves all before it, and not the last.
    code, done = fix("topic", "--expect-seal", f"{ends[-2]}:{seals[ends[-2]]}")
    assert (code, done["head_after"]) == (1, ends[-2])
    code, done = fix("topic", "--expect-seals", vault, "--dry-run")
    assert (code, done["head_after"], done["act_id"]) == (0, ends[-1], None)
    code, done = fix("topic", "--expect-seal", f"{ends[-1]}:{seals[ends[-1]]}")
    assert (code, done["head_after"]) == (0, ends[-1])
    assert stored(settings, whole) == before
    assert is_whole(call, settings, whole)


@pytest.mark.merge
def test_forged_rows_after_the_head_are_not_written(
    module_settings: Settings, whole: int, fix: Callable[..., tuple[int, Any]],
    send: Callable[..., None],
) -> None:  # fmt: skip
    """A writer of the topic can make a batch whose seal fits, but cannot sign it."""
    query = f"SELECT last_id, last_seal, epoch, nonce FROM chain_head WHERE chain_id = {whole}"
    ((head, seal, epoch, nonce),) = as_owner(module_settings, query)
    batch = sealed(
        [Event(head + 1, head, "forged", 0, b"x")],
        chain_id=whole, epoch=epoch, seal_before=seal,
        committed_at_us=time.time_ns() // 1_000,
    )  # fmt: skip
    slices = slices_of(batch, 10, publisher_epoch=epoch, publisher_nonce=nonce)
    send(f"orderchain.{whole}", *(encode_frame(*each, b"k" * 32) for each in slices))
    code, done = fix("topic")
    assert (code, done["batches"], done["head_after"]) == (0, 0, head)


@pytest.mark.nightly
def test_tail_is_not_added_under_a_leader_that_lives(
    call: Call,
    start: Start,
    module_settings: Settings,
    whole: int,
    make_topic: Callable[..., None],
    wait_for: Callable[[str], None],
) -> None:
    settings = module_settings
    ends = last_ids(settings, whole)
    lose_tail(settings, whole, ends[5])
    make_topic(f"orders-{whole}")
    leader = intake(start, settings, whole)
    wait_for(f"SELECT NOT released FROM chain_lease WHERE chain_id = {whole}")
    arguments = ("repair", "--chain", whole, "--from", "topic", *WHY)
    for done in (
        call(*arguments, "--dry-run", settings=settings),
        call(*arguments, settings=settings),
    ):
        assert done.code == 3, done
        assert "which is alive" in done.err
    assert last_ids(settings, whole) == ends[:6]

    # A leader that is only paused is fenced: it commits nothing more.
    leader.send_signal(signal.SIGSTOP)
    done = call(*arguments, settings=settings)
    assert done.code == 0, done
    leader.send_signal(signal.SIGCONT)
    code, err = ended(leader, is_asked=False)
    assert (code, "fenced" in err) == (3, True), err
    assert last_ids(settings, whole) == ends


# ----------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize("source", ["database", "parquet:x", "archive:", "journal:", "x"])
def test_source_that_is_none_is_refused(refused: Refused, source: str) -> None:
    settings = {"CHAINCTL_DATABASE": "postgresql://x@127.0.0.1:1/x", "CHAINCTL_KAFKA": "k:1"}
    line = refused("repair", "--chain", 1, "--from", source, *WHY, settings=settings)
    assert "expected topic, topic:NAME, journal:FILE or archive:DIR" in line


@pytest.mark.merge
def test_reason_and_rights_are_asked_for(
    call: Call,
    refused: Refused,
    postgres_server: PostgresServer,
    module_settings: Settings,
    whole: int,
    tmp_path: Path,
) -> None:
    here = ("repair", "--chain", whole, "--from", f"journal:{tmp_path}/j.jsonl")
    assert "'--reason'" in refused(*here, settings=module_settings)
    as_owner(
        module_settings,
        f"UPDATE chain_event SET payload = 'other' WHERE chain_id = {whole} AND id = 25",
    )
    name = module_settings["CHAINCTL_DATABASE"].rpartition("/")[2]
    auditor = {**module_settings, "CHAINCTL_DATABASE": postgres_server.dsn(AUDITOR, name)}
    assert "orderchain_owner" in refused(*here, *WHY, settings=auditor)
    tried = call(*here, *WHY, "--dry-run", settings=auditor)
    assert (tried.code, "1 batch, 20 rows" in tried.err) == (0, True), "who may read may plan"


def test_archive_of_another_database_is_refused(
    refused: Refused, module_settings: Settings, whole: int, tmp_path: Path
) -> None:
    (manifest,) = (tmp_path / "archive").glob("chain-*/_manifest.json")
    text = json.loads(manifest.read_text())
    other = "00000000-0000-0000-0000-000000000001"
    manifest.write_text(json.dumps({**text, "database_id": other}))
    here = ("repair", "--chain", whole, "--from", f"archive:{tmp_path}/archive", *WHY)
    assert f"archive of database was '{other}'" in refused(*here, settings=module_settings)


# ------------------------------------------------------------------------------------------ helpers


def intake(start: Start, settings: Settings, chain: int) -> subprocess.Popen[str]:
    """Start a process that leads the chain, with a short lease."""
    return start(
        *("sequence", "--chain", chain, "--intake-topic", f"orders-{chain}", "--standby"),
        *("--lease-seconds", 2),
        settings=settings,
    )


def ended(process: subprocess.Popen[str], *, is_asked: bool = True) -> tuple[int, str]:
    """Return exit code and stderr of a process; ask it to end first."""
    if is_asked:
        process.terminate()
    _, err = process.communicate()
    return process.returncode, err


@pytest.fixture
def wait_for(module_settings: Settings) -> Callable[[str], None]:
    """Returns once a query finds true."""

    def wait(query: str) -> None:
        bound = Deadline()
        while not as_owner(module_settings, query)[0][0]:
            assert bound.left() > 0, query

    return wait


@pytest.fixture
def head_after(wait_for: Callable[[str], None], whole: int) -> Callable[[int], None]:
    """Returns once the head is beyond an id."""
    query = f"SELECT last_id > {{}} FROM chain_head WHERE chain_id = {whole}"
    return lambda last_id: wait_for(query.format(last_id))


@pytest.fixture
def send(module_settings: Settings) -> Callable[..., None]:
    """Sends records to a topic."""
    from aiokafka import AIOKafkaProducer

    async def run(topic: str, values: tuple[str | bytes, ...]) -> None:
        producer = AIOKafkaProducer(bootstrap_servers=module_settings["CHAINCTL_KAFKA"])
        await producer.start()
        try:
            for value in values:
                record = value if isinstance(value, bytes) else value.encode()
                await producer.send_and_wait(topic, record, record[:8])
        finally:
            with suppress(Exception):
                await producer.stop()

    return lambda topic, *values: asyncio.run(run(topic, values))
