"""Verified rows go to Parquet, come back whole, and only then leave the database."""

# ruff: noqa: S608 - every value in a statement is a number or a name of this file

import asyncio
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from msgspec.structs import replace
from pyarrow.fs import LocalFileSystem

from chain_kernel.errors import InputError, RetryError, SettingError, SourceBroken
from chain_kernel.sql import AUDITOR
from chain_verifier.archive import retention
from chain_verifier.archive import write_archive as write_archive_module
from chain_verifier.archive.manifest import chain_folder, load_manifest
from chain_verifier.archive.part_files import proven_parts, verify_archive
from chain_verifier.archive.retention import RetentionReport, RetentionRequest, retain
from chain_verifier.archive.write_archive import ArchivedRun, write_archive
from chain_verifier.config import DatabaseSource, KeptSeal, ParquetSource, VerifyRequest
from chain_verifier.local.verify import verify_locally
from chain_verifier.places import Place, UrlPlace
from chain_verifier.report import Verdict
from chain_verifier.sources import bounded_parquet
from chain_verifier.stored_chain import StoredChain
from chain_verifier.verified_mark import read_extent
from tests.stored_pages import execute

from ..planted_faults import CHAIN_ID, chain_of, head_of
from ..stored_rows import DROP_RULES, PAGE_ROWS, batches_of, mark_up_to, store

ROWS = chain_of(random.Random(13), 400)
HEAD = head_of(ROWS)
SPAN = 200
"""Ids a partition."""
BATCHES = batches_of(ROWS, partition_ids=SPAN)
ENDS = [batch[-1].id or 0 for batch in BATCHES]
MARK = ENDS[29]
VERIFIED_ROWS = sum(map(len, BATCHES[:30]))
HARMED = BATCHES[4][2].id
"""A row of the batch that ends at `ENDS[4]`."""


class Chain:
    """A chain that is verified up to `MARK`, and its archive."""

    def __init__(self, owner: str, audit: str, folder: Path) -> None:
        self.owner, self.audit, self.folder = owner, audit, folder

    def archive(self, until_id: int | None = None) -> ArchivedRun:
        return write_archive(self.audit, self.folder, CHAIN_ID, until_id)

    def retain(self, until_id: int, **options: Any) -> RetentionReport:
        known: dict[str, Any] = {"actor": "eve", "key_window_rows": 0}
        request = RetentionRequest(chain_id=CHAIN_ID, until_id=until_id, **(known | options))
        return retain(self.owner, self.folder, request)

    def execute(self, *statements: str) -> list[Any]:
        return asyncio.run(execute(self.owner, *statements))

    def checkpoint(
        self, receiver: str, at_id: int, *, batch: int | None = None, is_report: bool = False
    ) -> None:
        self.execute(
            "INSERT INTO receiver_checkpoint (chain_id, receiver, head_delivered, batch_last_id,"
            f" seal, epoch, is_report) VALUES ({CHAIN_ID}, '{receiver}', {at_id}, {batch or at_id},"
            f" sha256(''), 1, {is_report})"
        )


@pytest.fixture
def chain(database: str, role_dsn: Callable[[str], str], tmp_path: Path) -> Chain:
    asyncio.run(store(database, ROWS, partition_ids=SPAN))
    asyncio.run(execute(database, "UPDATE chain_head SET published_id = last_id"))
    audit = role_dsn(AUDITOR)
    mark_up_to(audit, 0, MARK)
    return Chain(database, audit, tmp_path / "archive")


def partition_end(until_id: int) -> int:
    """The boundary of the partitions that end at or below `until_id`."""
    upper = next(
        number * SPAN
        for number in range(until_id // SPAN + 1, 0, -1)
        if max(end for end in ENDS if end < number * SPAN) <= until_id
    )
    return max(end for end in ENDS if end < upper)


@pytest.mark.merge
def test_archive_holds_the_verified_rows_part_by_part_and_reads_back_whole(chain: Chain) -> None:
    done = chain.archive()
    assert (done.after_id, done.last_id, done.rows) == (0, MARK, VERIFIED_ROWS)
    manifest = load_manifest(chain.folder, CHAIN_ID)
    assert manifest is not None
    assert [p.first_id // SPAN for p in manifest.parts] == list(range(MARK // SPAN + 1))
    report = verify_archive(chain.folder, CHAIN_ID)
    assert (report.fault, report.rows, report.last_id) == (None, VERIFIED_ROWS, MARK)
    source = ParquetSource(path=str(chain_folder(chain.folder, CHAIN_ID)))
    request = VerifyRequest(chain_id=CHAIN_ID, sources=(source,), head=MARK)
    assert verify_locally(request).verdict is Verdict.COMPLETE


def test_archive_goes_on_where_it_ended(chain: Chain) -> None:
    assert chain.archive(ENDS[4]).last_id == ENDS[4]
    assert chain.archive(ENDS[7] + 1).last_id == ENDS[7]
    done = chain.archive()
    assert (done.after_id, done.last_id) == (ENDS[7], MARK)
    assert chain.archive().rows == 0
    assert verify_archive(chain.folder, CHAIN_ID).rows == VERIFIED_ROWS


def test_archive_of_large_payloads_can_be_read_back(
    database: str, role_dsn: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded_parquet, "COLUMN_BYTES_MAX", 64 * 1024)
    monkeypatch.setattr(write_archive_module, "_GROUP_BYTES", 150_000)
    rows = [replace(row, payload=random.randbytes(4_000)) for row in ROWS[:100]]
    asyncio.run(store(database, rows, partition_ids=SPAN))
    audit, head = role_dsn(AUDITOR), head_of(rows)
    mark_up_to(audit, 0, head)
    assert write_archive(audit, tmp_path, CHAIN_ID).last_id == head
    report = verify_archive(tmp_path, CHAIN_ID)
    assert (report.fault, report.rows) == (None, len(rows))


def test_archive_by_two_runs_at_once_refuses_the_second_and_stays_whole(
    chain: Chain, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused: list[InputError] = []

    def second_run() -> None:
        with pytest.raises(InputError, match="no other run that writes to it") as caught:
            chain.archive()
        refused.append(caught.value)

    def beside(*given: Any) -> Any:
        """A second run begins when the first has written a part, and not named it yet."""
        if not refused:
            other = threading.Thread(target=second_run)
            other.start()
            other.join()
        return proven_parts(*given)

    monkeypatch.setattr(write_archive_module, "proven_parts", beside)
    chain.archive()
    assert len(refused) == 1
    report = verify_archive(chain.folder, CHAIN_ID)
    assert (report.fault, report.last_id) == (None, MARK)


def _folder_is_a_file(place: Path) -> Place:
    place.touch()
    return place


def _chain_is_a_file(place: Path) -> Place:
    place.mkdir()
    chain_folder(place, CHAIN_ID).touch()
    return place


def _chain_leads_nowhere(place: Path) -> Place:
    place.mkdir()
    chain_folder(place, CHAIN_ID).symlink_to(chain_folder(place, CHAIN_ID))
    return place


def _url_is_refused(place: Path) -> Place:
    place.touch()
    return UrlPlace(LocalFileSystem(), str(place), "s3://")


@pytest.mark.parametrize(
    "bad", [_folder_is_a_file, _chain_is_a_file, _chain_leads_nowhere, _url_is_refused]
)
def test_archive_at_a_place_that_cannot_be_one_is_refused(
    chain: Chain, bad: Callable[[Path], Place]
) -> None:
    place = bad(chain.folder)
    with pytest.raises(InputError, match=r"^archive was .*, expected a folder that can be used"):
        write_archive(chain.audit, place, CHAIN_ID)


def test_archive_above_the_verified_mark_or_without_one_is_refused(chain: Chain) -> None:
    with pytest.raises(SettingError, match="the verified mark"):
        chain.archive(MARK + 1)
    chain.execute("DELETE FROM chain_verified")
    with pytest.raises(SettingError, match="verified mark was not given"):
        chain.archive()


PAGE_END = BATCHES[4][PAGE_ROWS - 1].id


def page(change: str) -> tuple[list[str], str]:
    """What a page may hold once its owner has dropped its rules."""
    optional = "ALTER TABLE chain_page ALTER payloads DROP NOT NULL"
    statement = f"UPDATE chain_page SET {change} WHERE last_id = {PAGE_END}"
    return [*DROP_RULES, optional, statement], f"the page that ends at {PAGE_END} holds a NULL, or"


DAMAGES: dict[str, tuple[list[str], str]] = {
    "a key": ([f"UPDATE chain_event SET key = 'x' WHERE id = {HARMED}"], "seal of its rows"),
    "a row gone": ([f"DELETE FROM chain_event WHERE id = {HARMED}"], "rows, expected"),
    "an epoch": (
        [f"UPDATE chain_batch SET epoch = 9 WHERE last_id = {ENDS[4]}"], "seal of its rows",
    ),
    "a time": (
        [f"UPDATE chain_batch SET committed_at = 'infinity' WHERE last_id = {ENDS[4]}"],
        "seal of its rows",
    ),
    "a NULL": page("keys[2] = NULL"),
    "fewer payloads": page("payloads = payloads[:3]"),
    "more keys": page("keys = keys || 'x'::text"),
    "ids of two dimensions": page("ids = ARRAY[ids[:2], ids[3:]]"),
    "all of two dimensions": page(
        ", ".join(f"{name} = ARRAY[{name}[:2], {name}[3:]]"
                  for name in ("ids", "pids", "keys", "event_times_ns", "payloads"))
    ),
    "no payloads": page("payloads = NULL"),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGES)
def test_archive_of_a_damaged_database_adds_no_part(chain: Chain, name: str) -> None:
    statements, noted = DAMAGES[name]
    chain.execute(*statements)
    with pytest.raises(SourceBroken, match=noted):
        chain.archive()
    manifest = load_manifest(chain.folder, CHAIN_ID)
    assert manifest is not None
    assert manifest.last_id < ENDS[4]


@pytest.mark.merge
def test_retention_detaches_old_partitions_and_leaves_a_boundary(chain: Chain) -> None:
    chain.archive()
    chain.checkpoint("r", ENDS[28])
    boundary = partition_end(ENDS[20])
    seal = chain.execute(f"SELECT seal FROM chain_batch WHERE last_id = {boundary}")
    plan = chain.retain(ENDS[20], is_dry_run=True)
    assert not plan.is_done
    assert chain.execute("SELECT count(*) FROM chain_event") == [(len(ROWS),)]
    done = chain.retain(ENDS[20])
    assert (done.boundary_id, done.partitions) == (boundary, plan.partitions)
    assert chain.execute("SELECT min(pid) FROM chain_event") == [(boundary,)]
    oldest = "SELECT last_id, first_id, prev_last_id, row_count FROM chain_batch ORDER BY 1 LIMIT 1"
    assert chain.execute(oldest) == [(boundary, boundary, None, 0)]
    assert chain.execute(f"SELECT seal FROM chain_batch WHERE last_id = {boundary}") == seal
    assert chain.execute("SELECT act, actor FROM chain_act") == [("retention", "eve")]
    kept = chain.execute(f"SELECT count(*) FROM {done.partitions[0]}")
    assert kept[0][0] > 0
    assert chain.retain(ENDS[20]).partitions == ()


def test_retention_leaves_a_chain_that_verifies_and_an_archive_that_goes_on(chain: Chain) -> None:
    chain.archive()
    boundary = chain.retain(ENDS[20]).boundary_id
    standing = read_extent(chain.audit, CHAIN_ID)
    assert (standing.boundary_id, standing.start) == (boundary, MARK)
    source = DatabaseSource(database=chain.audit)
    request = VerifyRequest(chain_id=CHAIN_ID, sources=(source,), start=boundary)
    report = verify_locally(request)
    assert (report.verdict, report.head) == (Verdict.COMPLETE, HEAD)
    mark_up_to(chain.audit, boundary, HEAD)
    assert chain.archive().last_id == HEAD
    assert verify_archive(chain.folder, CHAIN_ID).rows == len(ROWS)


def test_verify_beside_a_retention_says_that_rows_were_archived(
    chain: Chain, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain.archive()
    read = StoredChain._by_ranges

    def beside(stored: StoredChain, name: str) -> Any:
        monkeypatch.setattr(StoredChain, "_by_ranges", read)
        chain.retain(ENDS[20])
        return read(stored, name)

    monkeypatch.setattr(StoredChain, "_by_ranges", beside)
    request = VerifyRequest(chain_id=CHAIN_ID, sources=(DatabaseSource(database=chain.audit),))
    with pytest.raises(SourceBroken, match="rows were archived while it was read: verify again"):
        verify_locally(request)


def test_verify_with_the_seal_of_an_archived_row_is_refused(chain: Chain) -> None:
    chain.archive()
    ((seal,),) = chain.execute(f"SELECT seal FROM chain_batch WHERE last_id = {ENDS[3]}")
    boundary = chain.retain(ENDS[20]).boundary_id
    request = VerifyRequest(
        chain_id=CHAIN_ID,
        sources=(DatabaseSource(database=chain.audit),),
        start=boundary,
        kept_seals=(KeptSeal(id=ENDS[3], seal=seal),),
    )
    with pytest.raises(SettingError, match=f"at least {boundary}.*archive --check"):
        verify_locally(request)


class Refusal(NamedTuple):
    """What keeps rows in the database, up to where they may go, and what is reported."""

    noted: str
    limit: int
    receivers: dict[str, Any] = {}  # noqa: RUF012 - never changed
    statement: str = "SELECT 1"


REFUSALS = {
    "a receiver": Refusal(
        "the checkpoint of receiver 'slow'", ENDS[10], {"slow": {"at_id": ENDS[10]}}
    ),
    "a report of a receiver": Refusal(
        "the checkpoint of receiver 'slow'", ENDS[10],
        {"slow": {"at_id": ENDS[10], "is_report": True}},
    ),
    # It may be an older batch than the last one before the receiver's row.
    "a seal that is to be compared": Refusal(
        "the last batch compared by the checkpoint of receiver 'live'", ENDS[6],
        {"live": {"at_id": ENDS[10], "batch": ENDS[6]}},
    ),
    "a halt": Refusal(
        "the checkpoint of receiver 'h'", ENDS[3],
        statement=f"INSERT INTO receiver_halt VALUES ({CHAIN_ID}, 'h', {ENDS[3]}, 'Fork', 'x')",
    ),
    "the mark": Refusal("the verified mark", MARK),
    "what is published": Refusal(
        "published_id", ENDS[5], statement=f"UPDATE chain_head SET published_id = {ENDS[5]}"
    ),
    "a page of keys": Refusal(
        "before the rows whose keys are looked up", ENDS[8],
        statement=f"INSERT INTO chain_key_page VALUES ({CHAIN_ID}, {ENDS[8]}, {ENDS[30]}, '', '')",
    ),
}  # fmt: skip


@pytest.mark.merge
@pytest.mark.parametrize("name", REFUSALS)
def test_retention_above_what_somebody_needs_is_refused(chain: Chain, name: str) -> None:
    case = REFUSALS[name]
    chain.archive()
    chain.checkpoint("ahead", MARK)
    for receiver, at in case.receivers.items():
        chain.checkpoint(receiver, **at)
    chain.execute(case.statement)
    with pytest.raises(SettingError, match=f"at most {case.limit}, {case.noted}"):
        chain.retain(case.limit + 1)
    assert chain.retain(case.limit, is_dry_run=True).boundary_id <= case.limit


@pytest.mark.parametrize("other", ["a retention", "a mark", "a receiver"])
def test_retention_that_meets_another_state_once_the_archive_is_proven_does_nothing(
    chain: Chain, monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    chain.archive()
    others: dict[str, Callable[[], object]] = {
        "a retention": lambda: chain.retain(ENDS[25]),
        "a mark": lambda: chain.execute("UPDATE chain_verified SET seal = sha256(seal)"),
        "a receiver": lambda: chain.checkpoint("slow", ENDS[3]),
    }
    require = retention._require_archived

    async def beside(*given: Any) -> Any:
        monkeypatch.setattr(retention, "_require_archived", require)
        seal = await require(*given)
        await asyncio.to_thread(others[other])
        return seal

    monkeypatch.setattr(retention, "_require_archived", beside)
    with pytest.raises(
        (RetryError, InputError, SettingError), match=r"meanwhile|verified by|receiver 'slow'"
    ):
        chain.retain(ENDS[10])
    acts = chain.execute("SELECT detail FROM chain_act WHERE act = 'retention'")
    assert len(acts) == (other == "a retention")


@pytest.mark.parametrize("rows", [0, 1, 95, 10**6])
def test_retention_within_the_window_of_keys_is_refused_without_any_page_of_keys(
    chain: Chain, rows: int
) -> None:
    chain.archive()
    counts = list(map(len, BATCHES))
    behind = [sum(counts[at + 1 :]) for at in range(len(BATCHES))]
    limit = max((end for end, left in zip(ENDS, behind, strict=True) if left >= rows), default=0)
    limit = min(limit, MARK)
    shown = "the verified mark" if limit == MARK else f"the window of keys of {rows:,} rows"
    with pytest.raises(SettingError, match=f"at most {limit}, .*{shown}"):
        chain.retain(limit + 1, key_window_rows=rows)
    assert chain.retain(limit, key_window_rows=rows, is_dry_run=True).boundary_id <= limit


@pytest.mark.merge
def test_retention_without_a_sound_archive_of_all_that_would_go_is_refused(chain: Chain) -> None:
    with pytest.raises(InputError, match="an archive that holds chain"):
        chain.retain(ENDS[20])
    chain.archive(ENDS[10])
    with pytest.raises(InputError, match=f"up to {ENDS[10]}', expected rows after 0"):
        chain.retain(ENDS[20])
    chain.archive()
    (path, *_) = sorted(chain_folder(chain.folder, CHAIN_ID).glob("rows-*.parquet"))
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    with pytest.raises(InputError, match="expected an archive that verifies"):
        chain.retain(ENDS[20])
    path.write_bytes(content)
    chain.execute("UPDATE schema_version SET database_id = gen_random_uuid()")
    with pytest.raises(InputError, match="archive of database"):
        chain.retain(ENDS[20])
    assert chain.execute("SELECT count(*) FROM chain_event") == [(len(ROWS),)]


@pytest.mark.merge
def test_retention_that_was_interrupted_is_ended_by_the_next_run(chain: Chain) -> None:
    chain.archive()
    boundary = chain.retain(ENDS[20], is_dry_run=True).boundary_id
    chain.execute(
        "UPDATE chain_batch SET prev_last_id = NULL, first_id = last_id, row_count = 0 "
        f"WHERE last_id = {boundary}",
        f"DELETE FROM chain_batch WHERE last_id < {boundary}",
    )
    done = chain.retain(ENDS[20])
    assert (done.boundary_id, chain.execute("SELECT min(pid) FROM chain_event")) == (
        boundary, [(boundary,)],
    )  # fmt: skip


def test_retention_keeps_the_partition_of_a_batch_that_straddles_its_bound(chain: Chain) -> None:
    """None is ever written so; were it there all the same, none of its rows may go."""
    chain.archive()
    plan = chain.retain(ENDS[10], is_dry_run=True)
    assert plan.boundary_id % SPAN < SPAN - 1
    behind = ENDS[ENDS.index(plan.boundary_id) + 1]
    chain.execute(
        f"UPDATE chain_batch SET first_id = {plan.boundary_id + 1} WHERE last_id = {behind}"
    )
    assert chain.retain(ENDS[10], is_dry_run=True).partitions == plan.partitions[:-1]
