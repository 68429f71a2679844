"""Every place of every page, damaged in every way: what is handed on is what the seals prove."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing
from typing import Final

import asyncpg
import pytest

from chain_kernel.errors import GapError, HaltError
from chain_kernel.model import Event
from chain_kernel.seal import event_pages, next_seal
from gapfill import GapReader, GapReaderConfig
from tests.builders.stored_chain import StoredChain
from tests.stored_pages import LET_LACK_VALUES

from .conftest import CHAIN_ID, MakeStored

Rows = list[Event]
Damage = Callable[[Rows, int], Rows]

BATCHES: Final = (3, 12, 2, 5)
"""Rows of each; the second has two pages, of nine and three."""


def with_row(rows: Rows, at: int, **changes: object) -> Rows:
    fields = {name: getattr(rows[at], name) for name in Event.__struct_fields__}
    return [*rows[:at], Event(**{**fields, **changes}), *rows[at + 1 :]]


DAMAGES: Final[dict[str, Damage]] = {
    "payload": lambda rows, at: with_row(rows, at, payload=b"evil"),
    "pid before": lambda rows, at: with_row(rows, at, pid=max(0, rows[at].pid - 1)),
    "pid after": lambda rows, at: with_row(rows, at, pid=rows[at].pid + 1),
    "id": lambda rows, at: with_row(rows, at, id=rows[at].id + 1),
    "repeated": lambda rows, at: [*rows[: at + 1], *rows[at:]],
    "removed": lambda rows, at: [*rows[:at], *rows[at + 1 :]],
    "cut off": lambda rows, at: rows[:at],
    "cut off before": lambda rows, at: rows[at:],
    "swapped": lambda rows, at: [*rows[:at], *reversed(rows[at : at + 2]), *rows[at + 2 :]],
    "page lost": lambda rows, at: rows if at else [],
}


async def pages_of(admin: asyncpg.Connection) -> list[Rows]:
    found = await admin.fetch(
        "SELECT ids, pids, keys, event_times_ns, payloads FROM chain_page "
        "WHERE chain_id = $1 ORDER BY last_id",
        CHAIN_ID,
    )
    return [list(map(Event, *page)) for page in found]


async def store_pages(admin: asyncpg.Connection, pages: Sequence[Rows]) -> None:
    columns = ("id", "pid", "key", "event_time_ns", "payload")
    async with admin.transaction():
        await admin.execute("DELETE FROM chain_page")
        await admin.executemany(
            "INSERT INTO chain_page VALUES ($1, $2, $3, $4, $5, $6, $7, $8) ON CONFLICT DO NOTHING",
            [
                (CHAIN_ID, rows[0].id, rows[-1].id,
                 *([getattr(row, name) for row in rows] for name in columns))
                for rows in pages if rows
            ],
        )  # fmt: skip


def proven(stored: StoredChain, pages: list[Rows]) -> list[int]:
    """Return the ids that the seals prove: of the batches before the first that does not fit."""
    ids: list[int] = []
    after = 0
    for batch in stored.chain.batches:
        own = [row for rows in pages if after < rows[-1].id <= batch.last_id for row in rows]
        if not own:
            break
        seal = next_seal(
            stored.chain.mark(after).seal,
            epoch=batch.epoch,
            first_id=batch.first_id,
            last_id=batch.last_id,
            row_count=batch.row_count,
            committed_at_us=batch.committed_at_us,
            pages=event_pages(own),
        )
        if seal != batch.seal:
            break
        ids += [row.id for row in own]
        after = batch.last_id
    return ids


def damaged(pages: list[Rows]) -> Iterator[tuple[str, list[Rows]]]:
    """Yield the damaged pages: each damage alone, and with the first row of its batch changed."""
    for number, rows in enumerate(pages):
        first = 1 if number == 2 else number  # the page that begins its batch
        for at in range(len(rows)):
            for name, damage in DAMAGES.items():
                what = f"{name} at row {at} of page {number}"
                changed = [*pages[:number], damage(rows, at), *pages[number + 1 :]]
                yield what, changed
                if changed[first]:
                    evil = with_row(changed[first], 0, payload=b"evil")
                    yield (
                        f"{what}, first row changed",
                        [*changed[:first], evil, *changed[first + 1 :]],
                    )


@pytest.mark.guarantee("G11", "G13")
async def test_fill_of_pages_that_claim_other_ends_hands_on_what_the_seals_prove(
    make_stored: MakeStored, gap_dsn: str, admin: asyncpg.Connection
) -> None:
    """A page that claims to begin before the fill, or to end after it, looks like one of its ends,
    whose batch has no proof."""
    stored = await make_stored(BATCHES)
    pages = await pages_of(admin)
    await admin.execute(LET_LACK_VALUES)
    await admin.execute("ALTER TABLE chain_page DISABLE TRIGGER ALL")
    config = GapReaderConfig(database=gap_dsn, chain_id=CHAIN_ID)
    async with GapReader(config) as reader:
        for number, rows in enumerate(pages):
            evil = [*pages[:number], with_row(rows, 0, payload=b"evil"), *pages[number + 1 :]]
            for first, last in ((0, 0), (rows[0].id - 1, 0), (0, 1), (rows[0].id - 1, 1)):
                await store_pages(admin, evil)
                await admin.execute(
                    "UPDATE chain_page SET first_id = $3, last_id = last_id + $4 "
                    "WHERE chain_id = $1 AND last_id = $2",
                    CHAIN_ID, rows[-1].id, first, last,
                )  # fmt: skip
                handed_on, error = await fill(reader, stored)
                assert handed_on == proven(stored, evil), (number, first, last)
                assert error is not None


@pytest.mark.guarantee("G11", "G13")
async def test_fill_of_damaged_pages_hands_on_what_the_seals_prove_and_no_row_more(
    make_stored: MakeStored, gap_dsn: str, admin: asyncpg.Connection
) -> None:
    stored = await make_stored(BATCHES)
    chain, pages = stored.chain, await pages_of(admin)
    assert [len(rows) for rows in pages] == [3, 9, 3, 2, 5]
    await admin.execute(LET_LACK_VALUES)
    await admin.execute("ALTER TABLE chain_page DISABLE TRIGGER ALL")
    config = GapReaderConfig(database=gap_dsn, chain_id=CHAIN_ID)
    cases = 0
    async with GapReader(config) as reader:
        for what, changed in damaged(pages):
            await store_pages(admin, changed)
            handed_on, error = await fill(reader, stored)
            expected = proven(stored, await pages_of(admin))
            assert handed_on == expected, what
            assert (error is None) == (expected == chain.ids), what
            cases += expected != chain.ids
    assert cases > 300


async def fill(reader: GapReader, stored: StoredChain) -> tuple[list[int], Exception | None]:
    ids: list[int] = []
    chain = stored.chain
    async with aclosing(reader.runs(chain.mark(0), chain.mark().id)) as runs:
        try:
            async for run in runs:
                ids += [event.id for event in run.events]
        except (HaltError, GapError) as error:
            return ids, error
    return ids, None
