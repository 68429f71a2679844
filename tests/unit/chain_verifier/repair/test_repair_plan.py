"""The core of a repair: what of a stored chain does not fit, and what may replace it."""

from __future__ import annotations

import random
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from chain_kernel.clock import time_of
from chain_kernel.seal import content_of, page_image
from chain_kernel.testing.memory_chain import sealed
from chain_verifier.checks.seals import SealedBatch
from chain_verifier.repair.matching import Offer, SourceMatching
from chain_verifier.repair.survey import (
    PIECES_MAX,
    BatchEnd,
    Pieces,
    Repair,
    Survey,
    SurveyedBatch,
    batch_piece,
)
from tests.builders.chains import CHAIN_ID, Chain, make_chain

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from chain_kernel.seal import Batch

SIZES = (3, 1, 4, 2, 5, 3, 2, 6)


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
    return content_of(page_image(*columns).columns)


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


def start_of(chain: Chain) -> BatchEnd:
    return BatchEnd(id=0, seal=chain.genesis, epoch=0, committed_at=time_of(0))


def survey_of(
    chain: Chain,
    batches: Iterable[SurveyedBatch],
    head: Batch,
    kept: dict[int, bytes] | None = None,
) -> Survey:
    survey = Survey(start_of(chain), kept or {})
    for each in batches:
        survey.take(each)
    survey.end(head.last_id, head.seal)
    return survey


def matched(
    chain: Chain, survey: Survey, head: Batch, offers: Iterable[Offer]
) -> tuple[list[Repair], SourceMatching]:
    place = BatchEnd(
        id=head.last_id, seal=head.seal, epoch=head.epoch,
        committed_at=time_of(head.committed_at_us * 1_000),
    )  # fmt: skip
    matching = SourceMatching(survey, place, chain.chain_id, "the source")
    return list(matching.repairs(offers)), matching


def lost(batch: Batch) -> SurveyedBatch:
    """The batch without its pages."""
    return replace(stored(batch), content=None)


def ends(repairs: Sequence[Repair]) -> list[int]:
    return [repair.entry.last_id for repair in repairs]


@pytest.fixture
def chain() -> Chain:
    return make_chain(SIZES, seed=5)


def test_whole_chain_needs_nothing_and_takes_nothing(chain: Chain) -> None:
    head = chain.batches[-1]
    survey = survey_of(chain, map(stored, chain.batches), head)
    repairs, matching = matched(chain, survey, head, map(offer_of, chain.batches))
    assert (repairs, matching.left.listed, matching.head.id) == ([], [], head.last_id)


def test_lost_rows_are_taken_in_any_order_and_whatever_else_is_offered(chain: Chain) -> None:
    head = chain.batches[-1]
    damaged = [chain.batches[at] for at in (0, 3, 4, 7)]
    survey = survey_of(
        chain, (lost(each) if each in damaged else stored(each) for each in chain.batches), head
    )
    offers = [offer_of(each) for each in chain.batches]
    random.Random(1).shuffle(offers)
    repairs, matching = matched(chain, survey, head, offers)
    assert sorted(ends(repairs)) == [each.last_id for each in damaged]
    assert {repair.what for repair in repairs} == {"rows"}
    assert matching.left.listed == []
    assert matching.written.rows == sum(each.row_count for each in damaged)


def test_only_rows_that_give_the_seal_are_taken(chain: Chain) -> None:
    head, damaged = chain.batches[-1], chain.batches[4]
    survey = survey_of(
        chain, (lost(each) if each is damaged else stored(each) for each in chain.batches), head
    )
    rows = rows_of(damaged)
    wrong = [
        [*rows[:2], (*rows[2][:4], b"other"), *rows[3:]],
        rows[:-1],
        [*rows, (rows[-1][0] + 1, rows[-1][0], "k", 0, b"")],
        [rows[1], rows[0], *rows[2:]],
    ]
    for each in wrong:
        repairs, matching = matched(chain, survey, head, [Offer(rows=each)])
        assert repairs == []
        (left,) = matching.left.listed
        assert (left.after_id, left.until_id) == (damaged.pid, damaged.last_id)
        assert left.why.startswith("the source")
    repairs, matching = matched(
        chain, survey, head, [*(Offer(rows=w) for w in wrong), Offer(rows=rows)]
    )
    assert ends(repairs) == [damaged.last_id]
    assert matching.left.listed == []


@pytest.mark.parametrize("as_source", [offer_of, sent])
def test_missing_entries_are_taken_if_they_lead_to_the_next_stored_seal(
    chain: Chain, as_source: Any
) -> None:
    head = chain.batches[-1]
    gone = chain.batches[2:5]
    survey = survey_of(chain, (stored(b) for b in chain.batches if b not in gone), head)
    offers = [as_source(batch) for batch in chain.batches]
    repairs, matching = matched(chain, survey, head, reversed(offers))
    assert [repair.entry for repair in repairs] == [entry_of(batch) for batch in gone]
    assert [repair.was for repair in repairs] == [None] * 3
    assert matching.left.listed == []
    # One of them is missing in the source, too: none of them is written.
    repairs, matching = matched(chain, survey, head, [o for o in offers if o is not offers[3]])
    assert repairs == []
    (left,) = matching.left.listed
    assert (left.after_id, left.until_id) == (gone[0].pid, chain.batches[5].last_id)


def test_missing_entries_at_the_head_are_taken_if_they_lead_to_its_seal(chain: Chain) -> None:
    head = chain.batches[-1]
    survey = survey_of(chain, map(stored, chain.batches[:-2]), head)
    repairs, matching = matched(chain, survey, head, map(sent, chain.batches))
    assert ends(repairs) == [batch.last_id for batch in chain.batches[-2:]]
    assert not any(repair.is_tail for repair in repairs)
    other = replace(head, seal=bytes(32))
    survey = survey_of(chain, map(stored, chain.batches[:-2]), other)
    repairs, matching = matched(chain, survey, other, map(sent, chain.batches))
    assert repairs == []
    assert "do not lead to the seal" in matching.left.listed[0].why


def test_commit_time_is_found_near_the_time_of_the_record_and_not_far_from_it(
    chain: Chain,
) -> None:
    head, gone = chain.batches[-1], chain.batches[3]
    survey = survey_of(chain, (stored(b) for b in chain.batches if b is not gone), head)
    near = [timedelta(milliseconds=-900), timedelta(0), timedelta(milliseconds=1_500)]
    for after in near:
        repairs, _ = matched(chain, survey, head, [sent(gone, after)])
        assert [repair.entry for repair in repairs] == [entry_of(gone)], after


def test_changed_entry_is_replaced_by_that_of_the_source(chain: Chain) -> None:
    head, changed = chain.batches[-1], chain.batches[3]
    for field, value in (
        ("committed_at", time_of((changed.committed_at_us + 1) * 1_000)), ("epoch", 7),
        ("row_count", 9), ("seal", bytes(32)),
    ):  # fmt: skip
        entry = replace(entry_of(changed), **{field: value})
        # Rows of another count are not those of the entry.
        held = None if field == "row_count" else content(changed)
        survey = survey_of(
            chain,
            (
                SurveyedBatch(entry=entry, content=held) if batch is changed else stored(batch)
                for batch in chain.batches
            ),
            head,
        )
        repairs, matching = matched(chain, survey, head, map(sent, chain.batches))
        assert [(each.was, each.entry) for each in repairs] == [(entry, entry_of(changed))], field
        assert matching.left.listed == []


def test_wrong_seal_before_lost_rows_is_put_right_first(chain: Chain) -> None:
    """Neither of the two batches alone shows what the seal between them was; the source does."""
    head = chain.batches[-1]
    wrong = replace(entry_of(chain.batches[3]), seal=bytes(32))
    batches = [stored(batch) for batch in chain.batches]
    batches[3] = SurveyedBatch(entry=wrong, content=None)
    survey = survey_of(chain, batches, head)
    repairs, matching = matched(chain, survey, head, map(offer_of, chain.batches))
    assert ends(repairs) == [chain.batches[3].last_id], "what follows was whole all the time"
    assert matching.left.listed == []


def test_head_and_last_batch_contradict_each_other_and_the_source_decides(chain: Chain) -> None:
    last = chain.batches[-1]
    head = replace(last, seal=bytes(32))
    survey = survey_of(chain, map(stored, chain.batches), head)
    repairs, matching = matched(chain, survey, head, [offer_of(last)])
    assert [(each.what, each.rows) for each in repairs] == [("head", None)]
    assert (matching.head.id, matching.head.seal) == (last.last_id, last.seal)
    repairs, matching = matched(chain, survey, head, [])
    assert (repairs, matching.left.listed[0].until_id) == ([], last.last_id)

    # Somebody has rewritten the last batch with its seal, and not the head.
    other = sealed(
        [replace(event, payload=b"other") for event in last.events], chain_id=chain.chain_id,
        epoch=last.epoch, seal_before=last.seal_before, committed_at_us=last.committed_at_us,
    )  # fmt: skip
    survey = survey_of(chain, map(stored, [*chain.batches[:-1], other]), last)
    repairs, matching = matched(chain, survey, last, [sent(last)])
    assert [(each.what, each.entry) for each in repairs] == [("entry", entry_of(last))]
    assert (matching.head.seal, matching.left.listed) == (last.seal, [])


def test_verified_seal_decides_where_entry_and_head_were_rewritten_together(chain: Chain) -> None:
    last = chain.batches[-1]
    head = replace(last, seal=bytes(32))
    wrong = SurveyedBatch(entry=replace(entry_of(last), seal=bytes(32)), content=content(last))
    kept = {last.last_id: last.seal}
    survey = survey_of(chain, [*map(stored, chain.batches[:-1]), wrong], head, kept)
    repairs, matching = matched(chain, survey, head, [])
    assert [(each.what, each.entry) for each in repairs] == [("entry", entry_of(last))]
    assert (matching.head.seal, matching.left.listed) == (last.seal, [])


# --------------------------------------------------------------------------------- after the head


def grown(chain: Chain, count: int = 3) -> tuple[Survey, Batch, list[Batch]]:
    head = chain.batches[-1 - count]
    survey = survey_of(chain, map(stored, chain.batches[:-count]), head)
    return survey, head, chain.batches[-count:]


def test_tail_is_taken_while_known_leaders_have_signed_it(chain: Chain) -> None:
    survey, head, tail = grown(chain)
    repairs, matching = matched(chain, survey, head, map(sent, chain.batches))
    assert [repair.entry for repair in repairs] == [entry_of(batch) for batch in tail]
    assert all(repair.is_tail for repair in repairs)
    assert matching.head.id == tail[-1].last_id
    offers = [sent(tail[0]), replace(sent(tail[1]), is_signed=False), sent(tail[2])]
    repairs, matching = matched(chain, survey, head, offers)
    assert (ends(repairs), matching.head.id) == ([tail[0].last_id], tail[0].last_id)
    (left,) = matching.left.listed
    assert (left.after_id, left.until_id) == (tail[0].last_id, tail[2].last_id)
    assert "--expect-seal" in left.why


def test_tail_that_nobody_signed_is_taken_up_to_a_kept_seal(chain: Chain) -> None:
    _, head, tail = grown(chain)
    kept = {tail[1].last_id: tail[1].seal}
    survey = survey_of(chain, map(stored, chain.batches[:-3]), head, kept)
    repairs, matching = matched(chain, survey, head, map(offer_of, chain.batches))
    assert (ends(repairs), matching.head.id) == (
        [tail[0].last_id, tail[1].last_id],
        tail[1].last_id,
    )
    survey = survey_of(chain, map(stored, chain.batches[:-3]), head, {tail[1].last_id: bytes(32)})
    repairs, matching = matched(chain, survey, head, map(offer_of, chain.batches))
    assert repairs == []
    assert [left.why for left in matching.left.listed][-1].startswith("the chain ends before")


def test_tail_ends_where_the_source_lacks_a_batch_or_an_epoch_falls(chain: Chain) -> None:
    survey, head, tail = grown(chain)
    repairs, matching = matched(chain, survey, head, [sent(tail[0]), sent(tail[2])])
    assert ends(repairs) == [tail[0].last_id]
    assert "has no batch after" in matching.left.listed[0].why
    place = BatchEnd(id=head.last_id, seal=head.seal, epoch=9, committed_at=time_of(0))
    matching = SourceMatching(survey, place, CHAIN_ID, "the source")
    assert list(matching.repairs(map(sent, tail))) == []


def test_tail_is_not_taken_without_the_batch_at_the_head(chain: Chain) -> None:
    head = chain.batches[-2]
    survey = survey_of(chain, map(stored, chain.batches[:-3]), head)
    repairs, _ = matched(chain, survey, head, [sent(chain.batches[-1])])
    assert repairs == []
    repairs, _ = matched(chain, survey, head, map(sent, chain.batches[-3:]))
    assert [repair.what for repair in repairs] == ["entry", "entry", "tail"]


# --------------------------------------------------------------------------------------- kept seals


def test_kept_seal_that_no_batch_has_is_left(chain: Chain) -> None:
    head, other = chain.batches[-1], chain.batches[4]
    survey = survey_of(chain, map(stored, chain.batches), head, {other.last_id: bytes(32)})
    _, matching = matched(chain, survey, head, map(offer_of, chain.batches))
    (left,) = matching.left.listed
    assert (left.until_id, "rewritten" in left.why) == (other.last_id, True)
    survey = survey_of(chain, map(stored, chain.batches), head, {other.last_id: other.seal})
    assert matched(chain, survey, head, [])[1].left.listed == []


# ------------------------------------------------------------------------------------------- pieces


def test_neighbours_are_one_piece_and_long_lists_are_counted(chain: Chain) -> None:
    pieces = Pieces()
    for batch in chain.batches[:3]:
        pieces.add(batch_piece("rows", entry_of(batch)))
    pieces.add(batch_piece("left", entry_of(chain.batches[3]), "why"))
    assert [(each.what, each.batches) for each in pieces.listed] == [("rows", 3), ("left", 1)]
    assert pieces.listed[0].rows == sum(SIZES[:3])
    for _ in range(PIECES_MAX):
        pieces.add(batch_piece("rows", entry_of(chain.batches[0])))
    assert len(pieces.listed) == PIECES_MAX
    assert pieces.count == PIECES_MAX + 2
