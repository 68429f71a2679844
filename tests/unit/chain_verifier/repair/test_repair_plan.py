"""The core of a repair: what of a stored chain does not fit, and what may replace it."""

import random
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any, NamedTuple

import pytest
from msgspec.structs import replace

from chain_kernel.clock import time_of
from chain_kernel.seal import Batch, Columns, content_of, page_image
from chain_kernel.testing.memory_chain import sealed
from chain_verifier.checks.seals import SealedBatch
from chain_verifier.repair.matching import Offer, SourceMatching
from chain_verifier.repair.survey import (
    BatchEnd,
    Repair,
    RepairPiece,
    Survey,
    SurveyedBatch,
    add_piece,
    batch_piece,
)
from tests.builders.chains import make_chain

SIZES = (3, 1, 4, 2, 5, 3, 2, 6)
CHAIN = make_chain(SIZES, seed=5)
TRUE = CHAIN.batches
LAST = TRUE[-1]
NO_SEAL = bytes(32)


def rows_of(batch: Batch) -> list[Any]:
    return [(e.id, e.pid, e.key, e.event_time_ns, e.payload) for e in batch.events]


def entry_of(batch: Batch) -> SealedBatch:
    return SealedBatch(
        first_id=batch.first_id,
        last_id=batch.last_id,
        prev_last_id=batch.pid,
        row_count=batch.row_count,
        epoch=batch.epoch,
        seal=batch.seal,
        committed_at=time_of(batch.committed_at_us * 1_000),
    )


def content(batch: Batch) -> bytes:
    columns: list[Any] = [list(column) for column in zip(*rows_of(batch), strict=True)]
    return content_of(page_image(Columns(*columns)).columns)


def stored(batch: Batch) -> SurveyedBatch:
    return SurveyedBatch(entry=entry_of(batch), content=content(batch))


def offer_of(batch: Batch, **changed: Any) -> Offer:
    """The batch as an archive has it."""
    whole = Offer(
        rows=rows_of(batch),
        epoch=batch.epoch,
        seal_before=batch.seal_before,
        seal=batch.seal,
        committed_at=time_of(batch.committed_at_us * 1_000),
    )
    return replace(whole, **changed)


def sent(batch: Batch, after: timedelta = timedelta(milliseconds=5), **changed: Any) -> Offer:
    """The batch as a topic has it: without the time of its commit."""
    sent_at = time_of(batch.committed_at_us * 1_000) + after
    cut = sent_at - timedelta(microseconds=sent_at.microsecond % 1_000)
    return offer_of(batch, committed_at=None, sent_at=cut, is_signed=True, **changed)


def lost(batch: Batch) -> SurveyedBatch:
    """The batch without its pages."""
    return replace(stored(batch), content=None)


def of(*numbers: int) -> list[SurveyedBatch]:
    """All batches as they are stored, those of `numbers` without their pages."""
    return [lost(one) if at in numbers else stored(one) for at, one in enumerate(TRUE)]


def without(*numbers: int) -> list[SurveyedBatch]:
    """All batches but for the entries of `numbers`."""
    return [stored(one) for at, one in enumerate(TRUE) if at not in numbers]


def with_entry(number: int, **changed: Any) -> list[SurveyedBatch]:
    """All batches, the entry of one changed; rows of another count are not those of an entry."""
    batches = of()
    held = None if "row_count" in changed else content(TRUE[number])
    entry = replace(entry_of(TRUE[number]), **changed)
    batches[number] = SurveyedBatch(entry=entry, content=held)
    return batches


def plan(
    batches: Iterable[SurveyedBatch],
    offers: Iterable[Offer],
    head: Batch = LAST,
    kept: Mapping[int, bytes] | None = None,
    epoch: int | None = None,
) -> tuple[list[Repair], SourceMatching]:
    start = BatchEnd(id=0, seal=CHAIN.genesis, epoch=0, committed_at=time_of(0))
    survey = Survey(start, kept or {})
    for each in batches:
        survey.take(each)
    survey.end(head.last_id, head.seal)
    place = BatchEnd(
        id=head.last_id, seal=head.seal, epoch=epoch or head.epoch,
        committed_at=time_of(head.committed_at_us * 1_000),
    )  # fmt: skip
    matching = SourceMatching(survey, place, CHAIN.chain_id, "the source")
    return list(matching.repairs(offers)), matching


class Case(NamedTuple):
    """What is stored, what a source offers, and what must come of it."""

    stored: list[SurveyedBatch]
    offers: list[Offer]
    written: list[tuple[str, int]]
    """What is done, and to which of the true batches; in any order."""
    left: list[tuple[int, int, str]] = []  # noqa: RUF012 - never changed
    """From which batch to which nothing is done, and what the reason has in it."""
    head: Batch = LAST
    kept: Mapping[int, bytes] = {}
    epoch: int | None = None


ARCHIVE = [offer_of(batch) for batch in TRUE]
TOPIC = [sent(batch) for batch in TRUE]
FOUR = rows_of(TRUE[4])
FALSE_ROWS = [
    [*FOUR[:2], (*FOUR[2][:4], b"other"), *FOUR[3:]],
    FOUR[:-1],
    [*FOUR, (FOUR[-1][0] + 1, FOUR[-1][0], "k", 0, b"")],
    [FOUR[1], FOUR[0], *FOUR[2:]],
]
REWRITTEN = sealed(
    [replace(event, payload=b"other") for event in LAST.events], chain_id=CHAIN.chain_id,
    epoch=LAST.epoch, seal_before=LAST.seal_before, committed_at_us=LAST.committed_at_us,
)  # fmt: skip
OTHER_HEAD = replace(LAST, seal=NO_SEAL)
KEPT = {LAST.last_id: LAST.seal}
TAIL = of()[:-3]
"""Without the last three batches, as a restored backup is; `FIVE` is then the head."""
FIVE = TRUE[4]
TO_FIVE: dict[str, Any] = {"head": FIVE}
TAILS = [("tail", 5), ("tail", 6), ("tail", 7)]

CASES = {
    "nothing wrong": Case(of(), ARCHIVE, []),
    "a kept seal that fits": Case(of(), [], [], kept=KEPT),
    "lost rows": Case(of(0, 3, 4, 7), ARCHIVE, [("rows", n) for n in (0, 3, 4, 7)]),
    "lost rows that the source lacks": Case(
        of(3), ARCHIVE[4:], [], [(3, 3, "the source does not have its rows")]
    ),
    **{
        f"false rows {n}": Case(of(4), [Offer(rows=rows)], [], [(4, 4, "the source")])
        for n, rows in enumerate(FALSE_ROWS)
    },
    "false rows and true ones": Case(
        of(4), [Offer(rows=rows) for rows in [*FALSE_ROWS, FOUR]], [("rows", 4)]
    ),
    "lost entries, of an archive": Case(
        without(2, 3, 4), ARCHIVE[::-1], [("entry", 2), ("entry", 3), ("entry", 4)]
    ),
    "lost entries, of a topic": Case(
        without(2, 3, 4), TOPIC[::-1], [("entry", 2), ("entry", 3), ("entry", 4)]
    ),
    "lost entries, one lost in the source, too": Case(
        without(2, 3, 4), [*TOPIC[:3], *TOPIC[4:]], [], [(2, 5, "has no batch after")]
    ),
    "lost entries at the head": Case(of()[:-2], TOPIC, [("entry", 6), ("entry", 7)]),
    "lost entries that lead to another head": Case(
        of()[:-2], TOPIC, [], [(6, 7, "do not lead to the seal")], OTHER_HEAD
    ),
    **{
        f"a record of {ms} ms later": Case(
            without(3), [sent(TRUE[3], timedelta(milliseconds=ms))], [("entry", 3)]
        )
        for ms in (-900, 0, 1_500)
    },
    "a record long after its commit": Case(
        TAIL, [sent(TRUE[5], timedelta(minutes=5))], [],
        [(5, 5, "is not within 20 s of its record")], **TO_FIVE,
    ),
    **{
        f"another {name}": Case(with_entry(3, **{name: value}), TOPIC, [("entry", 3)])
        for name, value in (
            ("committed_at", time_of((TRUE[3].committed_at_us + 1) * 1_000)),
            ("epoch", 7), ("row_count", 9), ("seal", NO_SEAL),
        )
    },
    "another seal, and a source that has rows alone": Case(
        with_entry(3, seal=NO_SEAL),
        [Offer(rows=rows_of(batch)) for batch in TRUE],
        [],
        [(3, 3, "does not have the seal of its rows"), (4, 4, "does not have the seal")],
    ),
    "another seal, and its rows lost": Case(
        [*of()[:3], replace(with_entry(3, seal=NO_SEAL)[3], content=None), *of()[4:]],
        ARCHIVE,
        [("entry", 3)],
    ),
    "the head has another seal than the last batch": Case(
        of(), ARCHIVE, [("head", 7)], head=OTHER_HEAD
    ),
    "the same, and nothing is offered": Case(
        of(), [], [], [(7, 7, "not have its rows")], OTHER_HEAD
    ),
    "the last batch was rewritten, and the head was not": Case(
        [*of()[:-1], stored(REWRITTEN)], TOPIC, [("entry", 7)]
    ),
    "both were rewritten, and a kept seal decides": Case(
        with_entry(7, seal=NO_SEAL), ARCHIVE, [("entry", 7)], head=OTHER_HEAD, kept=KEPT
    ),
    "a kept seal that no batch has": Case(
        of(), ARCHIVE, [], [(4, 4, "rewritten")], kept={TRUE[4].last_id: NO_SEAL}
    ),
    "a signed tail": Case(TAIL, TOPIC, TAILS, **TO_FIVE),
    "a tail of which one was not signed": Case(
        TAIL,
        [TOPIC[5], replace(TOPIC[6], is_signed=False), TOPIC[7]],
        TAILS[:1],
        [(6, 7, "--expect-seal")],
        **TO_FIVE,
    ),
    "a tail up to a kept seal": Case(
        TAIL, ARCHIVE, TAILS[:2], [(7, 7, "--expect-seal")],
        kept={TRUE[6].last_id: TRUE[6].seal}, **TO_FIVE,
    ),
    "a tail that leads to no kept seal": Case(
        TAIL, ARCHIVE, [], [(5, 7, "--expect-seal"), (5, 6, "the chain ends before")],
        kept={TRUE[6].last_id: NO_SEAL}, **TO_FIVE,
    ),
    "a tail with a batch that the source lacks": Case(
        TAIL, [TOPIC[5], TOPIC[7]], TAILS[:1], [(6, 7, "has no batch after")], **TO_FIVE
    ),
    "a tail of a lower epoch": Case(
        TAIL, TOPIC, [], [(5, 7, "has no batch after")], epoch=9, **TO_FIVE
    ),
    "a tail without the batch at the head": Case(
        of()[:-3], [TOPIC[7]], [], [(5, 6, "has no batch after")], head=TRUE[6]
    ),
    "a tail with the batches up to the head": Case(
        of()[:-3], TOPIC, [("entry", 5), ("entry", 6), ("tail", 7)], head=TRUE[6]
    ),
}  # fmt: skip


BY_NIGHT = {"a record long after its commit"}
"""It looks through each microsecond that a commit may have, for ten seconds."""


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.nightly] * (name in BY_NIGHT)) for name in CASES],
)
def test_only_what_a_seal_proves_is_written_and_the_rest_is_named(name: str) -> None:
    case = CASES[name]
    repairs, matching = plan(case.stored, case.offers, case.head, case.kept, case.epoch)
    numbers = {batch.last_id: at for at, batch in enumerate(TRUE)}
    found = [(each.what, numbers[each.entry.last_id]) for each in repairs]
    assert sorted(found) == sorted(case.written)
    for repair in repairs:
        assert repair.entry == entry_of(TRUE[numbers[repair.entry.last_id]])
        assert repair.rows in (None, rows_of(TRUE[numbers[repair.entry.last_id]]))
    left = [(piece.after_id, piece.until_id) for piece in matching.left]
    expected = [
        (TRUE[first].pid if why != "rewritten" else TRUE[last].last_id, TRUE[last].last_id)
        for first, last, why in case.left
    ]
    assert left == expected
    assert all(why in one.why for one, (*_, why) in zip(matching.left, case.left, strict=True))


@pytest.mark.parametrize("seed", range(20))
def test_lost_rows_and_entries_anywhere_come_back_from_a_whole_source(seed: int) -> None:
    rng = random.Random(seed)
    offers = rng.choice((ARCHIVE, TOPIC))
    rows = rng.sample(range(len(TRUE)), rng.randint(0, 4))
    entries = rng.sample(range(len(TRUE)), rng.randint(0, 4))
    batches = [one for at, one in enumerate(of(*rows)) if at not in entries]
    repairs, matching = plan(batches, rng.sample(offers, len(offers)))
    assert matching.left == []
    whole = {each.last_id: entry_of(each) for each in TRUE}
    assert {each.entry.last_id: each.entry for each in repairs}.items() <= whole.items()
    damaged = {TRUE[at].last_id for at in (*rows, *entries)}
    assert {each.entry.last_id for each in repairs} == damaged
    assert (matching.head.id, matching.head.seal) == (LAST.last_id, LAST.seal)


def test_neighbours_are_one_piece() -> None:
    pieces: list[RepairPiece] = []
    for batch in TRUE[:3]:
        add_piece(pieces, batch_piece("rows", entry_of(batch)))
    add_piece(pieces, batch_piece("left", entry_of(TRUE[3]), "why"))
    assert [(each.what, each.batches) for each in pieces] == [("rows", 3), ("left", 1)]
    assert pieces[0].rows == sum(SIZES[:3])
