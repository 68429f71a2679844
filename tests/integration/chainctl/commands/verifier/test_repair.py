"""`chainctl repair`: what a database lacks is written back where seals prove it, and only there."""

# ruff: noqa: S608 - every value in a statement is a number of this file

import asyncio
import json
import signal
import subprocess
import time
from collections.abc import Callable
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
from tests.builders.orders import order_file
from tests.builders.topics import send_records
from tests.command_call import Done
from tests.deadlines import Deadline
from tests.integration.chainctl.conftest import Call, Ctl, Refused, Start
from tests.stored_pages import as_owner

Settings = dict[str, str]

ROWS = 300
BATCH_ROWS = 20
FRAME_BYTES = 512 * 1024
PARTITION_IDS = 100
WHY = ("--reason", "a drill, ticket 517", "--actor", "eve")
NO_TRIGGERS = "SET session_replication_role = replica"
CHANGE = "UPDATE chain_event SET payload = 'other' WHERE chain_id = CHAIN AND id = 25"


class Whole:
    """A chain of narrow partitions, published, received, verified and archived to its head."""

    def __init__(self, ctl: Ctl, settings: Settings, chain: int, folder: Path) -> None:
        self.ctl, self.settings, self.chain, self.folder = ctl, settings, chain, folder
        self.sources = {
            "journal": f"journal:{folder}/j.jsonl",
            "archive": f"archive:{folder}/archive",
        }

    def sequence(self, name: str, rows: int, *options: object) -> None:
        """Commit the rows of a file."""
        orders = order_file(self.folder / name, rows)
        self.ctl.done("sequence", "--chain", self.chain, "--input", orders, *options)

    def receive(self) -> None:
        self.ctl.done("receive", "--chain", self.chain, "--output", self.folder / "j.jsonl")

    def execute(self, *statements: str) -> list[tuple[Any, ...]]:
        """Run statements as the owner; `CHAIN` in them is the chain's id."""
        named = (each.replace("CHAIN", str(self.chain)) for each in statements)
        return as_owner(self.settings, *named)

    def stored(self) -> list[list[Any]]:
        """All that is stored of the chain: entries of batches, and rows."""
        return [
            self.execute("SELECT * FROM chain_batch WHERE chain_id = CHAIN ORDER BY last_id"),
            self.execute("SELECT * FROM chain_event WHERE chain_id = CHAIN ORDER BY id"),
        ]

    def ends(self) -> list[int]:
        """The last ids of its batches."""
        query = "SELECT last_id FROM chain_batch WHERE chain_id = CHAIN ORDER BY last_id"
        return [last_id for (last_id,) in self.execute(query)]

    def is_whole(self) -> bool:
        here = ("verify", "--local", "--chain", self.chain, "--source", "database", "--seals")
        return self.ctl(*here).code == 0

    def lose_tail(self, after_id: int) -> None:
        """Put it back to where it was after a batch, as a restored backup does."""
        self.execute(
            NO_TRIGGERS,
            f"DELETE FROM chain_page WHERE chain_id = CHAIN AND last_id > {after_id}",
            f"DELETE FROM chain_batch WHERE chain_id = CHAIN AND last_id > {after_id}",
            f"DELETE FROM chain_verified WHERE chain_id = CHAIN AND until_id > {after_id}",
            f"UPDATE chain_head SET last_id = {after_id}, published_id = least(published_id, "
            f"{after_id}), last_seal = (SELECT seal FROM chain_batch WHERE chain_id = CHAIN "
            f"AND last_id = {after_id}) WHERE chain_id = CHAIN",
        )

    def repair(self, source: str, *options: object) -> Done:
        named = self.sources.get(source, source)
        return self.ctl("repair", "--chain", self.chain, "--source", named, *WHY, *options)

    def fix(self, source: str, *options: object) -> tuple[int, Any]:
        """Repair it; returns the exit code and what JSON shows."""
        done = self.repair(source, "--json", *options)
        assert done.code in (0, 1), done
        return done.code, json.loads(done.out)

    def request(self, source: JournalSource | TopicSource) -> RepairRequest:
        return RepairRequest(
            chain_id=self.chain,
            database=self.settings["CHAINCTL_DATABASE"],
            source=source,
            actor="eve",
            reason="a drill",
        )


@pytest.fixture
def whole(ctl: Ctl, settings: Settings, free_chain: int, tmp_path: Path) -> Whole:
    chain = Whole(ctl, settings, free_chain, tmp_path)
    ctl.done("chain", "create", free_chain, "--partition-ids", PARTITION_IDS)
    chain.sequence("o.csv", ROWS, "--batch-rows", BATCH_ROWS)
    chain.receive()
    ctl.done(
        *("verify", "--local", "--chain", free_chain, "--source", "database"), "--since-verified"
    )
    ctl.done("archive", "--chain", free_chain, "--archive", tmp_path / "archive")
    return chain


def ranges(pieces: list[Any]) -> list[tuple[str, int, int]]:
    return [(each["what"], each["after_id"], each["until_id"]) for each in pieces]


# ------------------------------------------------------------------------------ within the chain


@pytest.mark.merge
@pytest.mark.parametrize("source", ["topic", "journal", "archive"])
def test_changed_and_missing_pages_come_back_from_each_source(whole: Whole, source: str) -> None:
    before, ends = whole.stored(), whole.ends()
    whole.execute(
        CHANGE,
        "DELETE FROM chain_event WHERE chain_id = CHAIN AND id = 70",
        f"DELETE FROM chain_page WHERE chain_id = CHAIN AND last_id > {ends[6]} "
        f"AND last_id <= {ends[8]}",
        "DROP TABLE chain_page_CHAIN_2",
    )
    assert not whole.is_whole()
    damaged = whole.stored()

    code, tried = whole.fix(source, "--dry-run")
    assert (code, tried["act_id"], tried["left"]) == (0, None, [])
    assert whole.stored() == damaged, "a dry run writes nothing"
    code, done = whole.fix(source)
    assert (code, done["left"]) == (0, [])
    assert done["written"] == tried["written"]
    assert whole.stored() == before
    assert whole.is_whole()
    assert whole.fix(source)[1]["batches"] == 0, "nothing is left to do"

    (act,) = whole.ctl.json("acts", "--chain", whole.chain)
    assert (act["act"], act["actor"], act["reason"]) == ("repair", "eve", WHY[1])
    assert act["act_id"] == done["act_id"]
    assert act["detail"].startswith(f"{done['batches']} batches, {done['rows']} rows from {source}")


def test_batch_that_was_published_in_slices_comes_back_from_the_topic(
    ctl: Ctl, settings: Settings, chain: int, tmp_path: Path
) -> None:
    orders = tmp_path / "large.csv"
    orders.write_text("n\n" + "".join(f"{number}{'x' * 20_000}\n" for number in range(200)))
    ctl.done("sequence", "--chain", chain, "--input", orders)
    sliced = Whole(ctl, settings, chain, tmp_path)
    before = sliced.stored()
    batch = max(before[0], key=lambda entry: entry[4])
    assert batch[4] * 20_000 > FRAME_BYTES, "the batch is longer than a frame"
    sliced.execute("DELETE FROM chain_page WHERE chain_id = CHAIN")
    assert sliced.fix("topic")[0] == 0
    assert sliced.stored() == before
    assert sliced.is_whole()


@pytest.mark.parametrize("source", ["topic", "archive"])
def test_batches_whose_entries_are_gone_come_back_with_their_time(
    whole: Whole, source: str
) -> None:
    before, ends = whole.stored(), whole.ends()
    whole.execute(
        NO_TRIGGERS,
        f"DELETE FROM chain_page WHERE chain_id = CHAIN AND last_id IN ({ends[3]}, {ends[4]})",
        f"DELETE FROM chain_batch WHERE chain_id = CHAIN AND last_id IN ({ends[3]}, {ends[4]})",
        f"UPDATE chain_batch SET committed_at = committed_at + interval '1 us' "
        f"WHERE chain_id = CHAIN AND last_id = {ends[8]}",
        f"UPDATE chain_batch SET seal = sha256(seal) WHERE chain_id = CHAIN "
        f"AND last_id IN ({ends[6]}, {ends[-1]})",
    )
    code, done = whole.fix(source)
    assert (code, done["left"]) == (0, [])
    assert ("entry", ends[2], ends[4]) in ranges(done["written"])
    assert ("entry", ends[7], ends[8]) in ranges(done["written"])
    assert whole.stored() == before
    assert whole.is_whole()


def test_batch_that_is_changed_after_the_plan_ends_the_repair_with_nothing_done(
    whole: Whole,
) -> None:
    ends = whole.ends()
    whole.execute("DELETE FROM chain_page WHERE chain_id = CHAIN")
    seen: list[RepairPlan] = []

    def change(plan: RepairPlan) -> None:
        seen.append(plan)
        whole.execute(
            f"UPDATE chain_batch SET seal = sha256(seal) WHERE chain_id = CHAIN "
            f"AND last_id = {ends[7]}"
        )

    request = whole.request(JournalSource(path=str(whole.folder / "j.jsonl")))
    with pytest.raises(RetryError, match=f"ends at {ends[7]} was changed meanwhile"):
        repair_chain(request, change, lambda line: None)
    assert seen[0].rows == ROWS
    assert whole.stored()[1] == []


def test_leader_goes_on_while_pages_below_its_head_are_repaired(
    start: Start,
    whole: Whole,
    make_topic: Callable[..., None],
    head_after: Callable[[int], None],
    send: Callable[..., None],
) -> None:
    head = whole.ends()[-1]
    make_topic(f"orders-{whole.chain}")
    leader = intake(start, whole)
    send(f"orders-{whole.chain}", "a", "b")
    head_after(head)
    whole.execute(CHANGE)
    assert whole.fix("topic")[0] == 0
    now = whole.ends()[-1]
    send(f"orders-{whole.chain}", "c")
    head_after(now)
    assert ended(leader)[0] == 143
    assert whole.is_whole()


def test_batches_that_are_committed_meanwhile_are_neither_damage_nor_a_lost_tail(
    whole: Whole,
) -> None:
    plans: list[RepairPlan] = []

    def commit(line: str) -> None:
        if line.startswith("comparing"):
            whole.sequence("more.csv", 2)

    request = whole.request(TopicSource(kafka=whole.settings["CHAINCTL_KAFKA"]))
    done = repair_chain(request, plans.append, commit)
    assert (done.act_id, plans[0].batches, plans[0].left) == (None, 0, ())
    assert plans[0].head == whole.ends()[-1], "the new batch is compared, too"


# --------------------------------------------------------------------------------- after the head


@pytest.mark.merge
def test_tail_that_a_restore_has_lost_comes_back_from_the_topic(whole: Whole) -> None:
    before, ends = whole.stored(), whole.ends()
    whole.lose_tail(ends[5])
    assert whole.fix("journal")[0] == 1, "a journal alone proves no tail"

    code, done = whole.fix("topic")
    assert (code, ranges(done["written"])) == (0, [("tail", ends[5], ends[-1])])
    assert (done["head"], done["head_after"]) == (ends[5], ends[-1])
    assert whole.stored() == before, "the times of the commits, too"
    assert whole.is_whole()
    status = whole.ctl.json("status", "--chain", whole.chain)
    assert (status["head_persisted"], status["leader_state"]) == (ends[-1], "handed over")

    # The next leader knows the keys of these rows: the same file adds nothing a second time.
    whole.sequence("o.csv", ROWS)
    assert whole.ends() == ends
    whole.sequence("more.csv", 1)
    whole.receive()  # a receiver that had all of it goes on
    assert whole.is_whole()


def test_tail_of_a_term_that_the_restore_has_lost_needs_a_kept_seal(whole: Whole) -> None:
    head = whole.ends()[-1]
    (epoch,) = whole.execute("SELECT epoch, nonce FROM chain_head WHERE chain_id = CHAIN")
    whole.sequence("more.csv", 3, "--batch-rows", 1)
    before, ends = whole.stored(), whole.ends()
    seals = {last: row[6].hex() for last, row in zip(ends, before[0], strict=True)}
    vault = whole.folder / "vault"
    whole.ctl.done("seal", "export", "--chain", whole.chain, "--store", vault)
    whole.lose_tail(head)
    whole.execute(
        f"DELETE FROM chain_term WHERE chain_id = CHAIN AND epoch > {epoch[0]}",
        f"UPDATE chain_head SET epoch = {epoch[0]}, nonce = '\\x{epoch[1].hex()}' "
        f"WHERE chain_id = CHAIN",
    )
    code, done = whole.fix("topic")
    assert (code, done["batches"]) == (1, 0)
    assert "--expect-seal" in done["left"][0]["why"]
    code, done = whole.fix("topic", "--expect-seal", f"{ends[-1]}:{'ab' * 32}")
    assert (code, done["batches"]) == (1, 0), "a seal to which they do not lead proves nothing"
    # The seal of the last batch but one proves all before it, and not the last.
    code, done = whole.fix("topic", "--expect-seal", f"{ends[-2]}:{seals[ends[-2]]}")
    assert (code, done["head_after"]) == (1, ends[-2])
    code, done = whole.fix("topic", "--expect-seals", vault, "--dry-run")
    assert (code, done["head_after"], done["act_id"]) == (0, ends[-1], None)
    code, done = whole.fix("topic", "--expect-seal", f"{ends[-1]}:{seals[ends[-1]]}")
    assert (code, done["head_after"]) == (0, ends[-1])
    assert whole.stored() == before
    assert whole.is_whole()


@pytest.mark.merge
def test_forged_rows_after_the_head_are_not_written(
    whole: Whole, send: Callable[..., None]
) -> None:
    """A writer of the topic can make a batch whose seal fits, but cannot sign it."""
    query = "SELECT last_id, last_seal, epoch, nonce FROM chain_head WHERE chain_id = CHAIN"
    ((head, seal, epoch, nonce),) = whole.execute(query)
    batch = sealed(
        [Event(head + 1, head, "forged", 0, b"x")],
        chain_id=whole.chain, epoch=epoch, seal_before=seal,
        committed_at_us=time.time_ns() // 1_000,
    )  # fmt: skip
    slices = slices_of(batch, 10, publisher_epoch=epoch, publisher_nonce=nonce)
    send(f"orderchain.{whole.chain}", *(encode_frame(*each, b"k" * 32) for each in slices))
    code, done = whole.fix("topic")
    assert (code, done["batches"], done["head_after"]) == (0, 0, head)


@pytest.mark.nightly
def test_tail_is_not_added_under_a_leader_that_lives(
    start: Start,
    whole: Whole,
    make_topic: Callable[..., None],
    wait_for: Callable[[str], None],
) -> None:
    ends = whole.ends()
    whole.lose_tail(ends[5])
    make_topic(f"orders-{whole.chain}")
    leader = intake(start, whole)
    wait_for("SELECT NOT released FROM chain_lease WHERE chain_id = CHAIN")
    for done in (whole.repair("topic", "--dry-run"), whole.repair("topic")):
        assert done.code == 3, done
        assert "which is alive" in done.err
    assert whole.ends() == ends[:6]

    # A leader that is only paused is fenced: it commits nothing more.
    leader.send_signal(signal.SIGSTOP)
    done = whole.repair("topic")
    assert done.code == 0, done
    leader.send_signal(signal.SIGCONT)
    code, err = ended(leader, is_asked=False)
    assert (code, "fenced" in err) == (3, True), err
    assert whole.ends() == ends


# ----------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize("source", ["database", "parquet:x", "archive:", "journal:", "x"])
def test_source_that_is_none_is_refused(refused: Refused, source: str) -> None:
    settings = {"CHAINCTL_DATABASE": "postgresql://x@127.0.0.1:1/x", "CHAINCTL_KAFKA": "k:1"}
    line = refused("repair", "--chain", 1, "--source", source, *WHY, settings=settings)
    assert "expected topic, topic:NAME, journal:FILE or archive:DIR" in line


@pytest.mark.merge
def test_reason_and_rights_are_asked_for(
    call: Call, refused: Refused, postgres_server: PostgresServer, settings: Settings, whole: Whole
) -> None:
    here = ("repair", "--chain", whole.chain, "--source", whole.sources["journal"])
    assert "'--reason'" in whole.ctl.refused(*here)
    whole.execute(CHANGE)
    name = settings["CHAINCTL_DATABASE"].rpartition("/")[2]
    auditor = {**settings, "CHAINCTL_DATABASE": postgres_server.dsn(AUDITOR, name)}
    assert "orderchain_owner" in refused(*here, *WHY, settings=auditor)
    tried = call(*here, *WHY, "--dry-run", settings=auditor)
    assert (tried.code, "1 batch, 20 rows" in tried.err) == (0, True), "who may read may plan"


def test_archive_of_another_database_is_refused(whole: Whole) -> None:
    (manifest,) = (whole.folder / "archive").glob("chain-*/_manifest.json")
    other = "00000000-0000-0000-0000-000000000001"
    text = {**json.loads(manifest.read_text()), "database_id": other}
    manifest.write_text(json.dumps(text))
    here = ("repair", "--chain", whole.chain, "--source", whole.sources["archive"], *WHY)
    assert f"archive of database was '{other}'" in whole.ctl.refused(*here)


# ------------------------------------------------------------------------------------------ helpers


def intake(start: Start, whole: Whole) -> subprocess.Popen[str]:
    """Start a process that leads the chain, with a short lease."""
    return start(
        *("sequence", "--chain", whole.chain, "--intake-topic", f"orders-{whole.chain}"),
        *("--standby", "--lease-seconds", 2),
        settings=whole.settings,
    )


def ended(process: subprocess.Popen[str], *, is_asked: bool = True) -> tuple[int, str]:
    """Return exit code and stderr of a process; ask it to end first."""
    if is_asked:
        process.terminate()
    _, err = process.communicate()
    return process.returncode, err


@pytest.fixture
def wait_for(whole: Whole) -> Callable[[str], None]:
    """Returns once a query finds true."""

    def wait(query: str) -> None:
        bound = Deadline()
        while not whole.execute(query)[0][0]:
            assert bound.left() > 0, query

    return wait


@pytest.fixture
def head_after(wait_for: Callable[[str], None]) -> Callable[[int], None]:
    """Returns once the head is beyond an id."""
    query = "SELECT last_id > {} FROM chain_head WHERE chain_id = CHAIN"
    return lambda last_id: wait_for(query.format(last_id))


@pytest.fixture
def send(settings: Settings) -> Callable[..., None]:
    """Sends records to a topic."""

    async def run(topic: str, values: tuple[str | bytes, ...]) -> None:
        for value in values:
            record = value if isinstance(value, bytes) else value.encode()
            await send_records(settings["CHAINCTL_KAFKA"], topic, record, key=record[:8])

    return lambda topic, *values: asyncio.run(run(topic, values))
