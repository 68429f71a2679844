"""An archive as a source of rows: nothing leaves it before it is proven up to the boundary."""

import random
import uuid
from datetime import timedelta
from pathlib import Path

import pytest

from chain_kernel.errors import ForkFound, InputError, RetryError, RowsArchived, SealMismatch
from chain_kernel.model import ChainHead, ChainPosition, Event, Mark
from chain_verifier.archive import archived_rows
from chain_verifier.archive.archived_rows import SOURCE, ArchivedRows
from chain_verifier.archive.manifest import chain_folder, load_manifest
from tests.integration.chain_verifier.seeded_batches import Committed, sealed_chain

from .archives import BATCHES, CHAIN, CHAIN_ID, DATABASE_ID, PARTS, ROWS, as_stored, write_archive

BOUNDARY = BATCHES[11]
"""In the midst of the last part: the archive reaches further than what was detached."""


def mark_after(batch: Committed) -> Mark:
    return Mark(id=batch.last_id, batch_last_id=batch.last_id, seal=batch.seal, epoch=batch.epoch)


START = Mark(id=0, batch_last_id=0, seal=BATCHES[0].seal_before, epoch=0)


def standing_at(mark: Mark | None, database_id: uuid.UUID = DATABASE_ID) -> ChainPosition:
    head = ChainHead(
        chain_id=CHAIN_ID, database_id=database_id, epoch=9, nonce=b"", last_id=CHAIN.head,
        last_seal=BATCHES[-1].seal, published_id=CHAIN.head, topic="t", partition=0,
        is_published=True,
    )  # fmt: skip
    return ChainPosition(head=head, mark=mark, is_primary=True)


EDGE = standing_at(mark_after(BOUNDARY))


@pytest.fixture
def archive(tmp_path: Path) -> ArchivedRows:
    return ArchivedRows(write_archive(tmp_path, CHAIN, PARTS), CHAIN_ID)


async def read(archive: ArchivedRows, after: Mark, until_id: int) -> tuple[list[Event], Mark]:
    events: list[Event] = []
    end = after
    async for run in archive.runs(after, until_id, EDGE):
        assert (run.chain_id, run.source, run.first_pid) == (CHAIN_ID, SOURCE, end.id)
        events += run.events
        end = run.end
        assert end.id == events[-1].id
    return events, end


@pytest.mark.parametrize("run_rows", [1, 20, 5_000])
async def test_rows_come_linked_from_the_beginning_to_the_boundary(
    archive: ArchivedRows, run_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archived_rows, "RUN_ROWS", run_rows)
    events, end = await read(archive, START, BOUNDARY.last_id)
    expected = [row for row in ROWS if (row.id or 0) <= BOUNDARY.last_id]
    assert [tuple(getattr(e, n) for n in e.__struct_fields__) for e in events] == [
        (row.id, row.pid, row.key, row.event_time_ns, row.payload) for row in expected
    ]
    assert end == mark_after(BOUNDARY)


async def test_rows_begin_and_end_in_the_midst_of_a_batch(archive: ArchivedRows) -> None:
    begin, last = BATCHES[6], BATCHES[10]
    at = begin.rows[1].id or 0
    before = mark_after(BATCHES[5])
    after = Mark(id=at, batch_last_id=before.id, seal=before.seal, epoch=before.epoch)
    until_id = last.rows[2].id or 0
    events, end = await read(archive, after, until_id)
    assert [event.id for event in events] == [
        row.id for row in ROWS if at < (row.id or 0) <= until_id
    ]
    whole = mark_after(BATCHES[9])
    assert end == Mark(id=until_id, batch_last_id=whole.id, seal=whole.seal, epoch=whole.epoch)


async def test_marks_are_those_of_the_database_and_none_for_no_row(archive: ArchivedRows) -> None:
    assert await archive.mark_at(0, EDGE) == START
    assert await archive.mark_at(BATCHES[5].last_id, EDGE) == mark_after(BATCHES[5])
    inner = BATCHES[7].rows[1].id or 0
    found = await archive.mark_at(inner, EDGE)
    assert found is not None
    assert (found.id, found.batch_last_id, found.seal) == (
        inner, BATCHES[6].last_id, BATCHES[6].seal,
    )  # fmt: skip
    assert await archive.mark_at(inner + 1, EDGE) is None


async def test_places_are_found_by_id_and_by_time(archive: ArchivedRows) -> None:
    row = BATCHES[8].rows[2].id or 0
    assert await archive.row_at_or_before(row) == row
    assert await archive.row_at_or_before(row + 1) == row
    assert await archive.row_at_or_before(1) == 0
    time = BATCHES[8].committed_at
    assert await archive.row_before_time(time) == BATCHES[7].last_id
    assert await archive.row_before_time(time + timedelta(microseconds=1)) == BATCHES[8].last_id
    assert await archive.row_before_time(BATCHES[0].committed_at) == 0


async def test_a_place_that_the_archive_contradicts_halts(archive: ArchivedRows) -> None:
    no_row = Mark(id=ROWS[3].id or 0, batch_last_id=0, seal=START.seal, epoch=0)
    with pytest.raises(ForkFound):
        await read(archive, Mark(id=no_row.id + 1, batch_last_id=0, seal=START.seal, epoch=0), 99)
    other = Mark(id=0, batch_last_id=0, seal=bytes(32), epoch=0)
    with pytest.raises(SealMismatch):
        await read(archive, other, BOUNDARY.last_id)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("part", [0, 1, 2])
@pytest.mark.parametrize("name", ["rows", "_batches/batches"])
async def test_nothing_leaves_an_archive_that_is_harmed_anywhere_up_to_the_boundary(
    archive: ArchivedRows, tmp_path: Path, part: int, name: str
) -> None:
    files = sorted(chain_folder(tmp_path, CHAIN_ID).glob(f"{name}-*.parquet"))
    flip(files[part])
    with pytest.raises(InputError, match="expected an archive that verifies"):
        await read(archive, START, BATCHES[0].last_id)


async def test_nothing_leaves_an_archive_of_other_rows_whose_hashes_and_seals_agree(
    tmp_path: Path,
) -> None:
    """A forger of another chain of the same length cannot arrive at the database's seal."""
    other = sealed_chain(random.Random(6), CHAIN_ID, DATABASE_ID)
    rows = [as_stored(batch)[1] for batch in other.batches]
    assert rows
    archive = ArchivedRows(write_archive(tmp_path, other, (6, 9, len(other.batches))), CHAIN_ID)
    edge = other.batches[11]
    shown = Mark(id=edge.last_id, batch_last_id=edge.last_id, seal=BOUNDARY.seal, epoch=1)
    with pytest.raises(InputError, match="seal of the archive after"):
        await archive.mark_at(0, standing_at(shown))


async def test_an_archive_that_does_not_hold_the_rows_says_what_it_holds(tmp_path: Path) -> None:
    archive = ArchivedRows(write_archive(tmp_path, CHAIN, (9,), first=3), CHAIN_ID)
    with pytest.raises(RowsArchived) as caught:
        await archive.mark_at(0, EDGE)
    shown = f"holds the rows after {BATCHES[2].last_id} up to {BATCHES[8].last_id}"
    assert shown in caught.value.__notes__[0]
    with pytest.raises(RowsArchived):  # it ends before the boundary
        await archive.mark_at(BATCHES[4].last_id, EDGE)
    near = standing_at(mark_after(BATCHES[7]))
    assert await archive.mark_at(BATCHES[4].last_id, near) == mark_after(BATCHES[4])


async def test_an_archive_of_another_database_or_none_is_refused(
    archive: ArchivedRows, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="archive of database"):
        await archive.mark_at(0, standing_at(EDGE.mark, uuid.UUID(int=8)))
    with pytest.raises(InputError, match=f"an archive that holds chain {CHAIN_ID}"):
        await ArchivedRows(tmp_path / "elsewhere", CHAIN_ID).mark_at(0, EDGE)
    with pytest.raises(RetryError):  # the boundary moved between two questions
        await archive.mark_at(0, standing_at(None))


async def test_what_was_proven_once_is_proven_again_only_where_the_boundary_moved(
    archive: ArchivedRows, tmp_path: Path
) -> None:
    await archive.mark_at(0, EDGE)
    flip(sorted(chain_folder(tmp_path, CHAIN_ID).glob("rows-*.parquet"))[1])
    assert await archive.mark_at(BATCHES[5].last_id, EDGE) == mark_after(BATCHES[5])
    with pytest.raises(InputError):  # what is handed out is held against its files all the same
        await read(archive, START, BOUNDARY.last_id)
    with pytest.raises(InputError):
        await archive.mark_at(0, standing_at(mark_after(BATCHES[12])))
    assert load_manifest(tmp_path, CHAIN_ID) is not None
