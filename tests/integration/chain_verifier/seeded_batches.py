"""Seeded chains in batches with true seals, and faults planted in their tables."""

import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

import asyncpg
from msgspec import Struct, field
from msgspec.structs import replace

from chain_kernel.seal import genesis_seal
from chain_verifier.findings import Kind
from tests.integration.chain_verifier.planted_faults import Row, chain_of
from tests.integration.chain_verifier.published_frames import begin_term
from tests.integration.chain_verifier.seeded_rows import FAULTS_MAX, Shown, expect
from tests.integration.chain_verifier.stored_rows import fields_of, seal_of
from tests.stored_pages import store_rows

_FIRST_COMMIT: Final = datetime(2026, 1, 1, tzinfo=UTC)
_PARTITION_IDS: Final = 10**6
_PAGE_ROWS: Final = 3
"""Batches have two pages, or three."""
LINK_KINDS: Final = frozenset(
    {Kind.GAP.value, Kind.FORK.value, Kind.ORPHAN.value, Kind.SECOND_ROOT.value}
)
"""What is wrong with links; where something is, the number of rows is not reported as well."""


class Committed(Struct, frozen=True):
    """A batch as a sequencer commits it."""

    rows: list[Row]
    epoch: int
    seal_before: bytes
    seal: bytes
    committed_at: datetime

    @property
    def first_id(self) -> int:
        return self.rows[0].id or 0

    @property
    def last_id(self) -> int:
        return self.rows[-1].id or 0

    @property
    def prev_last_id(self) -> int:
        return self.rows[0].pid or 0


class Chain(Struct):
    """A whole chain in batches of 4 to 8 rows; the epoch rises by two now and then."""

    chain_id: int
    database_id: UUID
    batches: list[Committed]

    @property
    def head(self) -> int:
        return self.batches[-1].last_id

    @property
    def row_count(self) -> int:
        return sum(len(batch.rows) for batch in self.batches)


def sealed_chain(rng: random.Random, chain_id: int, database_id: UUID) -> Chain:
    rows = [replace(row, chain_id=chain_id) for row in chain_of(rng, rng.randint(110, 180))]
    seal = genesis_seal(database_id, chain_id)
    batches: list[Committed] = []
    epoch = 3
    while len(rows) > 4:
        count = rng.randint(4, 8)
        taken, rows = rows[:count], rows[count:]
        epoch += rng.choice([0, 0, 0, 2])
        committed_at = _FIRST_COMMIT + timedelta(seconds=len(batches))
        after = seal_of(taken, seal, epoch, committed_at)
        batches.append(Committed(taken, epoch, seal, after, committed_at))
        seal = after
    return Chain(chain_id, database_id, batches)


async def commit(connection: asyncpg.Connection, chain: Chain, topic: str) -> None:
    """Put a whole chain into the tables, published to its head."""
    chain_id, batches = chain.chain_id, chain.batches
    await connection.execute(
        "SELECT chain_create($1, $2, $3, 0, $4)",
        chain_id, batches[0].seal_before, topic, _PARTITION_IDS,
    )  # fmt: skip
    await begin_term(connection, chain_id)
    await connection.execute("SELECT chain_page_extend($1, $2)", chain_id, chain.head)
    for batch in batches:
        await store_rows(connection, chain_id, list(map(fields_of, batch.rows)), _PAGE_ROWS)
    await connection.executemany(
        "INSERT INTO chain_batch VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
        [
            (chain_id, b.first_id, b.last_id, b.prev_last_id, len(b.rows), b.epoch, b.seal,
             b.committed_at)
            for b in batches
        ],
    )  # fmt: skip
    await connection.execute(
        "UPDATE chain_head SET last_id = $2, published_id = $2, last_seal = $3, epoch = $4"
        " WHERE chain_id = $1",
        chain_id, chain.head, batches[-1].seal, batches[-1].epoch,
    )  # fmt: skip


class Harmed(Struct):
    """What is to be done to the tables of a chain, and how it must be found."""

    chain: Chain
    acts: list[tuple[str, tuple[Any, ...]]] = field(default_factory=list)
    expected: list[Shown] = field(default_factory=list)
    rows_missing: int = 0
    """By how many the table falls short of what its batches then count."""

    def act(self, statement: str, *values: Any) -> None:
        self.acts.append((statement, (self.chain.chain_id, *values)))


class _Place(Struct):
    """A batch to harm: the one before it and the one behind it are whole, and stay so."""

    harmed: Harmed
    before: Committed
    batch: Committed
    behind: Committed
    rng: random.Random

    @property
    def ends(self) -> dict[str, int]:
        return {"id": self.batch.first_id, "until_id": self.batch.last_id}

    def expect(self, kind: Kind, **fields: Any) -> None:
        self.harmed.expected.append(expect(kind, **fields))

    def mismatch(self) -> None:
        self.expect(Kind.SEAL_MISMATCH, **self.ends)

    def inner(self) -> Row:
        """A row that is neither the first nor the last of its batch."""
        return self.rng.choice(self.batch.rows[1:-1])

    def insert(self, row_id: int, pid: int) -> None:
        self.harmed.act("INSERT INTO chain_event VALUES ($1, $2, $3, 'added', 0, '')", row_id, pid)
        self.harmed.rows_missing -= 1
        count = len(self.batch.rows)
        self.expect(Kind.BATCH_COUNT, **self.ends, count=count + 1, expected_count=count)


def _deleted_row(place: _Place) -> None:
    row = place.rng.choice(place.batch.rows)
    place.harmed.act("DELETE FROM chain_event WHERE chain_id = $1 AND id = $2", row.id)
    place.harmed.rows_missing += 1
    place.expect(Kind.GAP, after_id=row.pid, until_id=row.id)
    count = len(place.batch.rows)
    place.expect(Kind.BATCH_COUNT, **place.ends, count=count - 1, expected_count=count)


def _deleted_batch(place: _Place) -> None:
    first, last = place.batch.first_id, place.batch.last_id
    place.harmed.act(
        "DELETE FROM chain_event WHERE chain_id = $1 AND id BETWEEN $2 AND $3", first, last
    )
    count = len(place.batch.rows)
    place.harmed.rows_missing += count
    place.expect(Kind.GAP, after_id=place.batch.prev_last_id, until_id=last)
    place.expect(Kind.BATCH_COUNT, **place.ends, count=0, expected_count=count)


def _forked_row(place: _Place) -> None:
    row = place.inner()
    other = (row.id or 0) + 1
    place.insert(other, row.pid or 0)
    place.expect(Kind.FORK, pid=row.pid, ids=(row.id, other))


def _orphaned_row(place: _Place) -> None:
    row = place.inner()
    pid = (place.batch.rows[0].id or 0) + 1
    row_id = (row.id or 0) + 1
    if row_id == pid:
        row_id = (place.batch.rows[2].id or 0) + 1
    place.insert(row_id, pid)
    place.expect(Kind.ORPHAN, id=row_id, pid=pid)


def _changed_row(place: _Place) -> None:
    change = place.rng.choice(
        [
            "key = key || ' '",
            "payload = payload || '\\x00'::bytea",
            "event_time_ns = event_time_ns + 1",
        ]
    )
    row = place.rng.choice(place.batch.rows)
    statement = f"UPDATE chain_event SET {change} WHERE chain_id = $1 AND id = $2"  # noqa: S608
    place.harmed.act(statement, row.id)
    place.mismatch()


def _swapped_rows(place: _Place) -> None:
    """Two rows have changed places, their links as they were."""
    one, other = place.batch.rows[1], place.batch.rows[2]
    for target, source in ((one, other), (other, one)):
        place.harmed.act(
            "UPDATE chain_event SET key = $3, payload = $4 WHERE chain_id = $1 AND id = $2",
            target.id, source.key, source.payload,
        )  # fmt: skip
    place.mismatch()


def _deleted_page(place: _Place) -> None:
    rows = place.batch.rows[:_PAGE_ROWS]
    place.harmed.act("DELETE FROM chain_page WHERE chain_id = $1 AND last_id = $2", rows[-1].id)
    place.harmed.rows_missing += len(rows)
    place.expect(Kind.GAP, after_id=place.batch.prev_last_id, until_id=rows[-1].id)
    count = len(place.batch.rows)
    place.expect(Kind.BATCH_COUNT, **place.ends, count=count - len(rows), expected_count=count)


def _misplaced_row(place: _Place) -> None:
    """The last two rows of a page are in each other's place, and it says so of its end."""
    before, last = place.batch.rows[_PAGE_ROWS - 2 : _PAGE_ROWS]
    columns = ("ids", "pids", "keys", "event_times_ns", "payloads")
    swap = ", ".join(f"{name} = {name}[:1] || {name}[3:3] || {name}[2:2]" for name in columns)
    place.harmed.act(
        f"UPDATE chain_page SET {swap}, last_id = ids[2] WHERE chain_id = $1 AND last_id = $2",  # noqa: S608
        last.id,
    )
    place.expect(Kind.OUT_OF_ORDER, id=before.id, until_id=before.id, after_id=last.id, count=1)
    place.mismatch()


def _wrong_count(place: _Place) -> None:
    by = place.rng.choice([-1, 1, 3])
    place.harmed.act(
        "UPDATE chain_batch SET row_count = row_count + $3 WHERE chain_id = $1 AND last_id = $2",
        place.batch.last_id, by,
    )  # fmt: skip
    place.harmed.rows_missing += by
    count = len(place.batch.rows)
    place.expect(Kind.BATCH_COUNT, **place.ends, count=count, expected_count=count + by)


def _wrong_range(place: _Place) -> None:
    first, last = place.batch.first_id, place.batch.last_id
    place.harmed.act(
        "UPDATE chain_batch SET first_id = first_id + 1 WHERE chain_id = $1 AND last_id = $2", last
    )
    ids, pid = (first, last), place.batch.prev_last_id
    place.expect(Kind.BATCH_RANGE, id=first + 1, until_id=last, ids=ids, pid=pid)


def _fallen_epoch(place: _Place) -> None:
    epoch = place.before.epoch - 1
    place.harmed.act(
        "UPDATE chain_batch SET epoch = $3 WHERE chain_id = $1 AND last_id = $2",
        place.batch.last_id, epoch,
    )  # fmt: skip
    expected = place.before.epoch
    place.expect(Kind.WRONG_EPOCH, **place.ends, epoch=epoch, expected_epoch=expected)
    place.mismatch()


def _raised_epoch(place: _Place) -> None:
    """The batch behind is then one whose epoch falls."""
    epoch = place.behind.epoch + 1
    place.harmed.act(
        "UPDATE chain_batch SET epoch = $3 WHERE chain_id = $1 AND last_id = $2",
        place.batch.last_id, epoch,
    )  # fmt: skip
    behind = place.behind
    place.expect(
        Kind.WRONG_EPOCH,
        id=behind.first_id,
        until_id=behind.last_id,
        epoch=behind.epoch,
        expected_epoch=epoch,
    )
    place.mismatch()


def _other_seal(place: _Place) -> None:
    """The batch behind is whole, though it does not give its seal behind the one that is stored."""
    place.harmed.act(
        "UPDATE chain_batch SET seal = sha256(seal) WHERE chain_id = $1 AND last_id = $2",
        place.batch.last_id,
    )
    place.mismatch()


def _other_time(place: _Place) -> None:
    place.harmed.act(
        "UPDATE chain_batch SET committed_at = committed_at + interval '1 us'"
        " WHERE chain_id = $1 AND last_id = $2",
        place.batch.last_id,
    )
    place.mismatch()


_FAULTS: Final[tuple[Callable[[_Place], None], ...]] = (
    _deleted_row, _deleted_batch, _deleted_page, _misplaced_row, _forked_row,
    _orphaned_row, _changed_row, _swapped_rows, _wrong_count, _wrong_range, _fallen_epoch,
    _raised_epoch, _other_seal, _other_time,
)  # fmt: skip

_REGION: Final = 3
"""Batches to each fault."""


def harm(rng: random.Random, chain: Chain) -> Harmed:
    """Plan 1 to 5 faults in the tables of a chain."""
    harmed = Harmed(chain)
    count = rng.randint(1, FAULTS_MAX)
    if rng.random() < 0.2:
        harmed.act("UPDATE chain_head SET last_seal = sha256(last_seal) WHERE chain_id = $1")
        harmed.expected.append(expect(Kind.HEAD_SEAL, id=chain.head))
        count -= 1
    batches = chain.batches
    places = range(1, len(batches) - 2, _REGION)
    for at in rng.sample(places, min(count, len(places))):
        rng.choice(_FAULTS)(_Place(harmed, batches[at - 1], batches[at], batches[at + 1], rng))
    _expect_row_count(harmed)
    return harmed


def _expect_row_count(harmed: Harmed) -> None:
    """The number of rows is reported only where no link is broken."""
    if harmed.rows_missing and not LINK_KINDS & {found[0] for found in harmed.expected}:
        count = harmed.chain.row_count
        expected = count + harmed.rows_missing
        harmed.expected.append(expect(Kind.ROW_COUNT, count=count, expected_count=expected))
