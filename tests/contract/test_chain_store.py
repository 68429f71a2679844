"""What every ChainStore and Lease must do, shown on those in memory and on PostgreSQL alike."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from chain_kernel.errors import (
    ChainMissing,
    Fenced,
    IntakeMoved,
    PrimaryBehind,
    RetryError,
    UnknownOutcome,
)
from chain_kernel.model import IntakeMark, IntakeReject, ServerIdentity, Term
from chain_kernel.ports import ChainStore, FrameSource, PendingCommit
from chain_kernel.seal import Batch, genesis_seal
from sequencer.core import SequencerCore
from sequencer.order import Order
from sequencer.publisher import heartbeat_frame
from tests.commits import commit
from tests.deadlines import deadline

from .conftest import AskToStepDown, HoldCommits, OpenLease, OpenStore, Skips, UntilWaiting

WALL_NS = 1_700_000_000_000_000_000

a_row_few_or_many = pytest.mark.parametrize("count", [1, 3, 100])
"""Rows of a batch: they go to the database in different ways."""


def marks_of(source: str, *positions: int) -> list[IntakeMark]:
    """Return the marks of an intake that were there, one after the other."""
    return [
        IntakeMark(source=source, position=position, digest=b"%d" % position, previous=previous)
        for previous, position in zip((None, *positions), positions, strict=False)
    ]


def as_read(mark: IntakeMark) -> IntakeMark:
    """Return `mark` as it is stored."""
    return replace(mark, previous=None, rejects=())


async def take_over(store: ChainStore, owner: str) -> Term:
    return await store.take_over(owner, await store.look())


def next_batch(term: Term, core: SequencerCore | None = None, count: int = 3) -> Batch:
    core = core or SequencerCore(term, takeover_skip_ids=0)
    return core.assemble([Order(f"k{n}", b"payload") for n in range(count)], WALL_NS)


class Led:
    """A store that leads chain 1."""

    def __init__(self, store: ChainStore, term: Term) -> None:
        self.store = store
        self.term = term
        self.core = SequencerCore(term, takeover_skip_ids=0)

    def batch(self, count: int = 3) -> Batch:
        return next_batch(self.term, self.core, count)

    async def commit(self, count: int = 3, **more: Any) -> Batch:
        batch = self.batch(count)
        await commit(self.store, batch, **{"published_id": 0, **more})
        return batch

    async def stored(self) -> list[Batch]:
        return [found async for found in self.store.batches(0)]


pytestmark = pytest.mark.usefixtures("implementation")


@pytest.fixture
async def led(open_store: OpenStore) -> Led:
    store = open_store()
    return Led(store, await take_over(store, "me"))


async def test_first_take_over_stands_at_the_genesis(open_store: OpenStore) -> None:
    term = await take_over(open_store(), "me")
    assert (term.epoch, term.last_id, term.published_id) == (1, 0, 0)
    assert term.last_seal == genesis_seal(term.database_id, 1)


async def test_take_over_of_a_chain_that_is_not_there_is_refused(open_store: OpenStore) -> None:
    with pytest.raises(ChainMissing):
        await take_over(open_store(chain_id=9), "me")


async def test_take_over_raises_the_epoch(open_store: OpenStore) -> None:
    first = await take_over(open_store(), "me")
    second = await take_over(open_store(), "you")
    assert second.epoch == first.epoch + 1
    assert second.nonce != first.nonce


@a_row_few_or_many
async def test_commit_moves_the_head_for_the_next_leader(open_store: OpenStore, count: int) -> None:
    store = open_store()
    batch = next_batch(await take_over(store, "me"), count=count)
    await commit(store, batch, published_id=0)
    term = await take_over(open_store(), "you")
    assert (term.last_id, term.last_seal) == (batch.last_id, batch.seal)
    assert term.last_committed_at_us == batch.committed_at_us


async def test_take_over_twice_leads_under_the_later_epoch(open_store: OpenStore) -> None:
    store = open_store()
    first = await take_over(store, "me")
    second = await take_over(store, "me")
    assert second.epoch == first.epoch + 1
    batch = next_batch(second, count=100)
    await commit(store, batch, published_id=0)
    assert await store.has_committed(batch)


@a_row_few_or_many
async def test_commit_of_a_replaced_leader_is_fenced(open_store: OpenStore, count: int) -> None:
    old, new = open_store(), open_store()
    batch = next_batch(await take_over(old, "old"), count=count)
    term = await take_over(new, "new")
    with pytest.raises((Fenced, RetryError)):
        await commit(old, batch, published_id=0)
    assert not await new.has_committed(batch)
    assert [found async for found in new.batches(0)] == []
    assert term.last_id == 0


@a_row_few_or_many
async def test_fence_is_met_by_the_next_commit(led: Led, open_store: OpenStore, count: int) -> None:
    first = await led.commit(count)
    await take_over(open_store(), "new")
    with pytest.raises(Fenced):
        await led.store.take_over_again("old", led.term)
    assert await led.store.has_committed(first)
    with pytest.raises((Fenced, RetryError)):
        await led.commit(count)


@a_row_few_or_many
async def test_commit_behind_the_wrong_parent_is_fenced(led: Led, count: int) -> None:
    led.batch()  # never committed
    mark = IntakeMark(source="file:a", position=1, digest=b"")
    with pytest.raises(Fenced):
        await led.commit(count, intake=[mark])
    again = await led.store.take_over_again("me", led.term)
    assert again.last_id == 0
    assert await led.store.intake("file:a") is None
    assert await led.stored() == []
    await commit(led.store, next_batch(again, count=count), published_id=0)


async def test_commit_sent_ahead_follows_the_one_under_way(led: Led) -> None:
    batches = [led.batch(100) for _ in range(5)]
    marks = marks_of("file:a", 0, 1, 2, 3, 4)
    pending: PendingCommit | None
    pending = await led.store.begin(batches[0], published_id=0, intake=[marks[0]])
    for place, batch in enumerate(batches):
        assert pending is not None
        following = None
        if place + 1 < len(batches):
            following = pending.follow(
                batches[place + 1], published_id=0, intake=[marks[place + 1]]
            )
            assert following is not None
        await pending.outcome()
        # Between two commits the store answers other questions.
        assert await led.store.has_committed(batch)
        pending = following
    assert await led.stored() == batches
    assert await led.store.intake("file:a") == as_read(marks[-1])


@a_row_few_or_many
async def test_commit_follows_one_whose_outcome_is_awaited(
    led: Led, hold_commits: HoldCommits, count: int
) -> None:
    first, second = led.batch(count), led.batch(count)
    async with hold_commits():
        pending = await led.store.begin(first, published_id=0)
        waiting = asyncio.ensure_future(pending.outcome())
        await asyncio.sleep(0)
        following = pending.follow(second, published_id=0)
        assert following is not None
    await waiting
    await following.outcome()
    assert await led.stored() == [first, second]


@a_row_few_or_many
async def test_commit_behind_a_fenced_one_is_not_stored(led: Led, count: int) -> None:
    led.batch()  # never committed
    first, second = led.batch(count), led.batch(count)
    pending = await led.store.begin(first, published_id=0)
    following = pending.follow(second, published_id=0)
    assert following is not None
    with pytest.raises(Fenced):
        await pending.outcome()
    with pytest.raises((Fenced, UnknownOutcome, RetryError)):
        await following.outcome()
    again = await led.store.take_over_again("me", led.term)
    assert again.last_id == 0
    assert not await led.store.has_committed(second)
    await commit(led.store, next_batch(again, count=100), published_id=0)


@a_row_few_or_many
async def test_commit_sent_ahead_is_not_known_once_the_connection_was_given_up(
    led: Led, hold_commits: HoldCommits, count: int
) -> None:
    first, second = led.batch(count), led.batch(count)
    async with hold_commits():
        pending = await led.store.begin(first, published_id=0)
        following = pending.follow(second, published_id=0)
        assert following is not None
        waiting = asyncio.ensure_future(pending.outcome())
        asyncio.get_running_loop().call_soon(waiting.cancel)
        with pytest.raises((asyncio.CancelledError, UnknownOutcome)):
            await waiting
    again = await led.store.take_over_again("me", led.term)
    with pytest.raises(UnknownOutcome):
        await following.outcome()
    held = await led.store.take_over_again("me", again)
    # Whatever became of them, they are in their order, and nothing else is there.
    found = await led.stored()
    assert found == [first, second][: len(found)]
    assert await led.store.has_committed(second) == (len(found) == 2)
    await commit(led.store, next_batch(held, count=100), published_id=0)


@a_row_few_or_many
async def test_one_commit_at_most_follows_another(led: Led, count: int) -> None:
    batches = [led.batch(count) for _ in range(3)]
    pending = await led.store.begin(batches[0], published_id=0)
    following = pending.follow(batches[1], published_id=0)
    assert following is not None
    assert pending.follow(batches[2], published_id=0) is None
    await pending.outcome()
    await following.outcome()
    assert await led.stored() == batches[:2]


async def test_batches_come_back_as_they_were_committed(led: Led) -> None:
    batches = [led.batch(count) for count in (3, 1, 50)]
    for batch in batches:
        await commit(led.store, batch, published_id=0)
    assert await led.stored() == batches
    assert [found async for found in led.store.batches(batches[0].last_id)] == batches[1:]
    assert [await led.store.has_committed(batch) for batch in batches] == [True, True, True]
    assert await led.store.rows_after(0, 100) == 54
    assert await led.store.rows_after(batches[0].last_id, 100) == 51
    assert await led.store.rows_after(batches[-1].last_id, 100) == 0


async def test_other_content_was_not_committed(led: Led) -> None:
    stored = next_batch(led.term, count=3)
    await commit(led.store, stored, published_id=0)
    assert not await led.store.has_committed(next_batch(led.term, count=2))


async def test_published_mark_never_falls(
    led: Led, open_store: OpenStore, open_lease: OpenLease
) -> None:
    first, second = led.batch(), led.batch()
    await commit(led.store, first, published_id=0)
    await commit(led.store, second, published_id=first.last_id)
    await open_lease().renew(led.term, 0)
    assert (await take_over(open_store(), "you")).published_id == first.last_id


@pytest.mark.parametrize("way", ["renew", "release"])
async def test_published_mark_of_an_idle_chain_is_stored_with_the_lease(
    led: Led, open_store: OpenStore, open_lease: OpenLease, way: str
) -> None:
    batch = await led.commit()
    await getattr(open_lease(), way)(led.term, batch.last_id)
    assert (await take_over(open_store(), "you")).published_id == batch.last_id


async def test_what_a_leader_notifies_is_heard(
    led: Led, open_lease: OpenLease, open_notices: Callable[[], FrameSource]
) -> None:
    notices, lease, term = open_notices(), open_lease(), led.term
    await notices.start()
    frames = [
        heartbeat_frame(term, last_id=last_id, last_seal=term.last_seal) for last_id in (1, 2, 3)
    ]
    for frame in frames:
        await lease.notify(term, frame)
    heard: list[bytes | None] = []
    async with deadline():
        while len(heard) < len(frames):
            heard += await notices.records(1.0)
    assert {*heard} == {*frames}


async def test_only_the_server_of_the_term_notifies(led: Led, open_lease: OpenLease) -> None:
    replaced = replace(led.term, server=ServerIdentity(1, 99))
    frame = heartbeat_frame(led.term, last_id=1, last_seal=led.term.last_seal)
    with pytest.raises(RetryError):
        await open_lease().notify(replaced, frame)


@pytest.mark.parametrize("way", ["renew", "release"])
async def test_lease_on_a_primary_that_lost_what_was_published_says_so(
    open_store: OpenStore, open_lease: OpenLease, way: str
) -> None:
    """A stale standby was promoted: it has the term, and not the rows."""
    term = await take_over(open_store(), "me")
    with pytest.raises(PrimaryBehind, match=f"ends at {term.last_id}, but {term.last_id + 9} was"):
        await getattr(open_lease(), way)(term, term.last_id + 9)


async def test_fenced_leader_names_its_successor(
    led: Led, open_store: OpenStore, open_lease: OpenLease
) -> None:
    await take_over(open_store(), "you")
    took = f"our epoch was {led.term.epoch}, another process took it over: you, in epoch"
    with pytest.raises(Fenced, match=took):
        await open_lease().renew(led.term, 0)


async def test_skip_moves_the_published_mark(open_store: OpenStore) -> None:
    store = open_store()
    batch = next_batch(await take_over(store, "me"))
    await commit(store, batch, published_id=0)
    await store.skip_published(0, batch.last_id)
    assert (await take_over(open_store(), "you")).published_id == batch.last_id


async def test_skip_that_was_recorded_before_is_recorded_up_to_its_new_end(
    led: Led, skips: Skips
) -> None:
    """The first answer was lost, and more was dropped since."""
    first, second = await led.commit(), await led.commit()
    for until_id in (first.last_id, second.last_id, second.last_id):
        await led.store.skip_published(0, until_id)
    assert await skips() == [(0, first.last_id), (first.last_id, second.last_id)]


async def test_intake_mark_moves_with_its_batch_alone(led: Led) -> None:
    first, second = marks_of("file:a", 3, 6)
    assert await led.store.intake("file:a") is None
    await led.commit(intake=[first])
    await led.commit(intake=[second])
    assert await led.store.intake("file:a") == as_read(second)
    assert await led.store.intake("file:b") is None


async def test_look_at_an_untouched_chain_shows_that_nobody_leads(open_store: OpenStore) -> None:
    sight = await open_store().look()
    assert (sight.epoch, sight.released) == (0, True)


async def test_take_over_on_an_old_sight_is_fenced(open_store: OpenStore) -> None:
    slow, fast = open_store(), open_store()
    sight = await slow.look()
    await take_over(fast, "fast")
    with pytest.raises(Fenced):
        await slow.take_over("slow", sight)
    assert (await slow.look()).owner == "fast"


async def test_leader_that_spoke_up_is_kept(open_store: OpenStore, open_lease: OpenLease) -> None:
    leader, standby = open_store(), open_store()
    term = await take_over(leader, "leader")
    sight = await standby.look()
    await open_lease().renew(term, 0)
    with pytest.raises(Fenced):
        await standby.take_over("standby", sight)
    assert (await standby.look()).epoch == term.epoch


async def test_take_over_again_keeps_the_lease(
    open_store: OpenStore, open_lease: OpenLease
) -> None:
    store, lease = open_store(), open_lease()
    held = await take_over(store, "me")
    term = await store.take_over_again("me", held)
    assert term.epoch == held.epoch + 1
    await lease.renew(term, 0)
    with pytest.raises(Fenced):
        await lease.renew(held, 0)


async def test_take_over_again_never_takes_back_what_another_leads(open_store: OpenStore) -> None:
    zombie, other = open_store(), open_store()
    held = await take_over(zombie, "zombie")
    await take_over(other, "other")
    with pytest.raises(Fenced):
        await zombie.take_over_again("zombie", held)
    assert (await other.look()).owner == "other"


async def test_release_shows_in_the_next_look(led: Led, open_lease: OpenLease) -> None:
    assert not (await led.store.look()).released
    await open_lease().release(led.term, 0)
    assert (await led.store.look()).released


async def test_request_to_step_down_reaches_the_leader_and_ends_with_its_process(
    open_store: OpenStore, open_lease: OpenLease, ask_to_step_down: AskToStepDown
) -> None:
    store, lease = open_store(), open_lease()
    term = await take_over(store, "me")
    assert not await lease.renew(term, 0)
    await ask_to_step_down()
    assert await lease.renew(term, 0)
    again = await store.take_over_again("me", term)
    assert await lease.renew(again, 0), "the same process, on a new connection"
    other = await take_over(open_store(), "other")
    assert not await lease.renew(other, 0), "another process was not asked"
    await ask_to_step_down()
    await lease.release(other, 0)
    assert not await lease.renew(await take_over(open_store(), "third"), 0)


async def test_move_intake_alone_is_stored_and_fenced(led: Led, open_store: OpenStore) -> None:
    mark = IntakeMark(source="topic:t:0", position=7, digest=b"")
    await led.store.move_intake([mark])
    assert await led.store.intake("topic:t:0") == mark
    await take_over(open_store(), "other")
    with pytest.raises((Fenced, RetryError)):
        await led.store.move_intake([mark])


async def test_move_of_no_intake_says_whether_we_lead(led: Led, open_store: OpenStore) -> None:
    await led.store.move_intake([])
    await led.store.close()
    with pytest.raises(RetryError):
        await led.store.move_intake([])
    await led.store.take_over_again("me", led.term)
    await led.store.move_intake([])
    await take_over(open_store(), "other")
    with pytest.raises((Fenced, RetryError)):
        await led.store.move_intake([])


async def test_marks_with_rejects_are_stored(led: Led) -> None:
    rejects = tuple(
        IntakeReject(position=position, key=key, reason="no order")
        for position, key in ((3, None), (5, "k"))
    )
    with_rejects = [
        IntakeMark(source=f"topic:t:{partition}", position=7, digest=b"d", rejects=rejects)
        for partition in (0, 1)
    ]
    await led.commit(intake=with_rejects)
    await led.store.move_intake(with_rejects)
    for mark in with_rejects:
        found = await led.store.intake(mark.source)
        assert found == IntakeMark(source=mark.source, position=7, digest=b"d")


async def test_later_mark_of_a_commit_counts(led: Led) -> None:
    first, last = marks_of("topic:t:0", 3, 6)
    (other,) = marks_of("topic:t:1", 4)
    await led.commit(intake=[first, other, last])
    assert await led.store.intake("topic:t:0") == as_read(last)
    assert await led.store.intake("topic:t:1") == other


@a_row_few_or_many
@pytest.mark.parametrize("previous", [None, 2, 9], ids=["begins again", "stale", "passes by"])
async def test_mark_that_does_not_follow_the_stored_one_stores_nothing(
    led: Led, previous: int | None, count: int
) -> None:
    (stored,) = marks_of("file:a", 3)
    await led.commit(intake=[stored])
    wrong = IntakeMark(source="file:a", position=12, digest=b"w", previous=previous)
    (sound,) = marks_of("file:b", 1)
    batch = led.batch(count)
    with pytest.raises(IntakeMoved, match="file:a"):
        await commit(led.store, batch, published_id=0, intake=[sound, wrong])
    again = await led.store.take_over_again("me", led.term)
    assert not await led.store.has_committed(batch)
    with pytest.raises(IntakeMoved, match="file:a"):
        await led.store.move_intake([sound, wrong])
    await led.store.take_over_again("me", again)
    assert await led.store.intake("file:a") == stored
    assert await led.store.intake("file:b") is None


async def test_mark_of_a_source_that_was_never_read_follows_nothing(led: Led) -> None:
    wrong = IntakeMark(source="file:a", position=12, digest=b"w", previous=7)
    with pytest.raises(IntakeMoved):
        await led.commit(intake=[wrong])
    await led.store.take_over_again("me", led.term)
    assert await led.store.intake("file:a") is None


async def test_move_of_an_intake_may_be_asked_for_twice(led: Led) -> None:
    """Its first answer may have been lost."""
    first, second = marks_of("topic:t:0", 3, 6)
    for mark in (first, first, second, second):
        await led.store.move_intake([mark])
    assert await led.store.intake("topic:t:0") == as_read(second)


@pytest.mark.parametrize(
    "source", ["file:it's", "topic:\\'; DROP TABLE chain_head; --:0", "$1 %s {}", "Größe/日本\n\t"]
)
async def test_intake_of_any_name_is_stored_as_it_is(led: Led, source: str) -> None:
    reject = IntakeReject(position=1, key=source, reason=source)
    mark = IntakeMark(source=source, position=2, digest=b"\x00'\\", rejects=(reject,))
    await led.commit(intake=[mark])
    assert await led.store.intake(source) == IntakeMark(
        source=source, position=2, digest=mark.digest
    )


async def test_take_over_again_is_not_fenced_by_the_tries_before_it(
    led: Led, hold_commits: HoldCommits, until_waiting: UntilWaiting
) -> None:
    """They were given up while they waited for the row, and land once it is free."""
    async with hold_commits():
        for _ in range(2):
            trying = asyncio.ensure_future(led.store.take_over_again("me", led.term))
            await until_waiting(1)
            trying.cancel()
            await asyncio.wait([trying])
        last = asyncio.ensure_future(led.store.take_over_again("me", led.term))
        await until_waiting(1)
    term = await last
    assert term.epoch > led.term.epoch
    await commit(led.store, next_batch(term), published_id=0)
