"""Seeded topics: the frames of a chain, repeats and noise among them, and faults in their order."""

import random
from collections.abc import Callable, Sequence
from typing import Any, Final

from msgspec import Struct, field
from msgspec.structs import replace

from chain_verifier.findings import Kind
from tests.integration.chain_verifier.planted_faults import Row
from tests.integration.chain_verifier.published_frames import frame_of, heartbeat_of
from tests.integration.chain_verifier.seeded_batches import Chain
from tests.integration.chain_verifier.seeded_rows import FAULTS_MAX, Shown, expect


class Slice(Struct, frozen=True):
    """One frame: a batch, or a part of it."""

    rows: tuple[Row, ...]
    fields: dict[str, Any]

    @property
    def first_pid(self) -> int:
        return self.rows[0].pid or 0

    @property
    def last_id(self) -> int:
        return self.rows[-1].id or 0

    def record(self) -> bytes:
        return frame_of(self.rows, **self.fields)


def slices_of(rng: random.Random, chain: Chain) -> list[Slice]:
    found: list[Slice] = []
    for batch in chain.batches:
        cut = rng.choice([0, 0, 2])
        common = {
            "chain_id": chain.chain_id,
            "epoch": batch.epoch,
            "publisher_epoch": chain.batches[-1].epoch,
            "seal_before": batch.seal_before,
        }
        if cut:
            found.append(Slice(tuple(batch.rows[:cut]), common))
        ended = common | {"seal_after": batch.seal, "is_batch_end": True}
        found.append(Slice(tuple(batch.rows[cut:]), ended))
    return found


class Topic(Struct):
    """What is published, and how it must be found, alone and against the database."""

    records: list[Slice | bytes]
    expected: list[Shown] = field(default_factory=list)
    against_database: list[Shown] = field(default_factory=list)
    """What a comparison with the database reports as well."""

    def expect(self, kind: Kind, **fields: Any) -> None:
        self.expected.append(expect(kind, **fields))

    def lack(self, gone: Sequence[Slice]) -> None:
        """Expect the rows of neighbouring frames to be lacking, as one finding."""
        rows = [row for one in gone for row in one.rows]
        is_range = len(rows) > 1
        self.against_database.append(
            expect(
                Kind.LACKING,
                id=rows[0].id,
                last_id=rows[-1].id if is_range else None,
                rows=len(rows) if is_range else None,
            )
        )

    def encoded(self) -> list[bytes]:
        return [one if isinstance(one, bytes) else one.record() for one in self.records]


def _lost(topic: Topic, at: list[Slice], rng: random.Random) -> None:
    """A frame, or two in a row, that never arrived, or that arrived damaged."""
    gone = at[1 : 1 + rng.choice([1, 1, 2])]
    for one in gone:
        place = topic.records.index(one)
        damaged = one.record()[:-1]
        topic.records[place : place + 1] = [damaged] if rng.random() < 0.4 else []
    topic.lack(gone)
    topic.expect(Kind.GAP, after_id=gone[0].first_pid, until_id=gone[-1].last_id)


def _late(topic: Topic, at: list[Slice], rng: random.Random) -> None:
    moved, behind = at[1], at[rng.choice([2, 3])]
    topic.records.remove(moved)
    topic.records.insert(topic.records.index(behind) + 1, moved)
    topic.expect(
        Kind.OUT_OF_ORDER,
        id=moved.rows[0].id,
        until_id=moved.last_id,
        after_id=behind.last_id,
        count=len(moved.rows),
    )


def _changed_repeat(topic: Topic, at: list[Slice], rng: random.Random) -> None:
    """A frame comes again, one of its rows with another content."""
    changed = rng.randrange(len(at[1].rows))
    rows = tuple(
        replace(row, payload=b"other") if number == changed else row
        for number, row in enumerate(at[1].rows)
    )
    again = Slice(rows, at[1].fields)
    topic.records.insert(topic.records.index(at[rng.choice([1, 3])]) + 1, again)
    topic.expect(Kind.DUPLICATE, id=rows[changed].id, count=2)
    topic.against_database.append(expect(Kind.SURPLUS, id=rows[changed].id))


def _fallen_epoch(topic: Topic, at: list[Slice], rng: random.Random) -> None:
    """A frame under an epoch below that of its batch, and of the frame before."""
    before = at[0].fields["epoch"]
    epoch = before - rng.choice([1, 2])
    fallen = Slice(at[1].rows, at[1].fields | {"epoch": epoch})
    topic.records[topic.records.index(at[1])] = fallen
    topic.expect(Kind.WRONG_EPOCH, id=at[1].rows[0].id, epoch=epoch, expected_epoch=before)


_FAULTS: Final[tuple[Callable[[Topic, list[Slice], random.Random], None], ...]] = (
    _lost, _lost, _late, _changed_repeat, _fallen_epoch,
)  # fmt: skip

_REGION: Final = 4
"""Frames to each fault."""


def publish_plan(rng: random.Random, chain: Chain, *, is_damaged: bool) -> Topic:
    """Return the records of a chain: whole, or with 1 to 5 faults; noise is in both."""
    slices = slices_of(rng, chain)
    topic = Topic(list(slices))
    if is_damaged:
        count = rng.randint(1, FAULTS_MAX)
        if rng.random() < 0.2:
            _lose_tail(topic, slices, rng)
            count -= 1
        regions = list(range(1, len(slices) - _REGION - 3, _REGION))
        for at in rng.sample(regions, min(count, len(regions))):
            kinds = _FAULTS
            if slices[at].fields["epoch"] != slices[at + 1].fields["epoch"]:
                kinds = tuple(kind for kind in _FAULTS if kind is not _fallen_epoch)
            rng.choice(kinds)(topic, slices[at : at + _REGION], rng)
    _add_noise(topic, slices, chain, rng)
    return topic


def _lose_tail(topic: Topic, slices: list[Slice], rng: random.Random) -> None:
    gone = slices[-rng.choice([1, 2]) :]
    for one in gone:
        topic.records.remove(one)
    topic.lack(gone)
    topic.expect(Kind.GAP, after_id=gone[0].first_pid, until_id=gone[-1].last_id)


def _add_noise(topic: Topic, slices: list[Slice], chain: Chain, rng: random.Random) -> None:
    """Frames and a tail published again as they were, heartbeats, what is no frame of the chain."""
    there = [one for one in topic.records if isinstance(one, Slice) and one in slices]
    for _ in range(rng.randint(0, 3)):
        first = rng.randrange(len(there) - 3)
        again = there[first : first + rng.randint(1, 3)]
        last = max(topic.records.index(one) for one in again)
        at = rng.randint(last + 1, len(topic.records))
        topic.records[at:at] = again
    other = Slice(slices[0].rows, slices[0].fields | {"chain_id": chain.chain_id + 1})
    batch = chain.batches[0]
    noise = [heartbeat_of(batch.last_id, batch.seal, chain.chain_id), b"no frame", other.record()]
    for record in rng.sample(noise, rng.randint(0, len(noise))):
        topic.records.insert(rng.randint(2, len(topic.records)), record)
