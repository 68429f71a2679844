"""The state of a fold as of a moment, over a chain in memory: moments, groups, what is refused."""

from collections.abc import AsyncGenerator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from chain_kernel.errors import (
    BatchDamaged,
    ForkFound,
    InputError,
    NotYetReadable,
    RetryError,
    SealMismatch,
    SettingError,
)
from chain_kernel.model import ChainPosition, Event, Mark, Run, Snapshot
from chain_kernel.testing.memory_receiver import MemoryGapSource
from chain_verifier.dataframe.fold import Fold, digest_of
from chain_verifier.local.state import Moment, StateAsOf, fold_up_to
from gapfill import PreferredSources
from matcher_receiver import FileSnapshotStore, ReceiverConfig
from matcher_receiver.testing import MemoryChain
from orderchain import state_as_of
from tests.builders.chains import FIRST_COMMIT_US, Chain

FIRST_COMMIT = datetime.fromtimestamp(FIRST_COMMIT_US / 1_000_000, UTC)


def add_ids(state: list[int], orders: Sequence[Event]) -> tuple[list[int], tuple[()]]:
    return [*state, *(order.id for order in orders)], ()


def of_payload(order: Event) -> str:
    return "even" if order.payload[0] % 2 == 0 else "odd"


WHOLE: Fold[list[int]] = Fold(start=lambda _: [], step=add_ids)
BY_PAYLOAD: Fold[list[int]] = Fold(start=lambda _: [], step=add_ids, group=of_payload)


def chain_of(*sizes: int) -> Chain:
    chain = Chain()
    for rows in sizes:
        chain.add(rows)
    return chain


async def state_of(
    chain: Chain, fold: Fold[Any] = WHOLE, group: str | None = None, /, *,
    snapshots: FileSnapshotStore | None = None, is_primary: bool = True, **moment: Any,
) -> StateAsOf[Any]:  # fmt: skip
    source = MemoryGapSource(lambda: chain, is_primary=is_primary, page_rows=4)
    return await fold_up_to(source, fold, group, Moment(**moment), snapshots)


async def test_state_of_each_id_is_that_of_the_orders_up_to_it() -> None:
    chain = chain_of(3, 10, 1, 5)
    for at_id in range(chain.ids[0], chain.ids[-1] + 1):
        found = await state_of(chain, id=at_id)
        expected = [each for each in chain.ids if each <= at_id]
        assert found.state == expected
        assert (found.id, found.after_id, found.rows) == (expected[-1], 0, len(expected))
        assert (found.digest, found.group) == (digest_of(expected), "")


async def test_commit_time_takes_whole_batches() -> None:
    chain = chain_of(3, 4)
    first, second = chain.batches
    at = FIRST_COMMIT
    assert (await state_of(chain, committed=at)).id == first.last_id
    assert (await state_of(chain, committed=at + timedelta(seconds=1))).id == second.last_id


@pytest.mark.parametrize("changed", range(4))
async def test_commit_time_that_was_changed_is_found_where_the_answer_needs_it(
    changed: int,
) -> None:
    chain = chain_of(3, 4, 2, 5)
    batch = chain.batches[changed]
    year_us = 366 * 24 * 3_600 * 1_000_000
    chain.batches[changed] = replace(batch, committed_at_us=batch.committed_at_us + year_us)
    for number in range(4):
        moment = FIRST_COMMIT + timedelta(microseconds=number)
        if changed <= number:
            with pytest.raises(BatchDamaged):
                await state_of(chain, committed=moment)


async def test_answer_is_final_once_no_order_up_to_the_moment_can_come() -> None:
    chain = chain_of(3, 4)
    assert (await state_of(chain, committed=FIRST_COMMIT)).is_final
    last = FIRST_COMMIT + timedelta(seconds=1)
    assert not (await state_of(chain, committed=last)).is_final
    assert (await state_of(chain, id=chain.ids[-1])).is_final
    assert not (await state_of(chain, event=last)).is_final

    class Growing(MemoryGapSource):
        async def row_before_time(self, time_us: int) -> int:
            found = await super().row_before_time(time_us)
            chain.add(2)
            return found

    found = await fold_up_to(Growing(lambda: chain), WHOLE, None, Moment(committed=last))
    assert (found.id, found.is_final) == (chain.ids[6], False), "its time may be an earlier one"


class BreakingOff(MemoryGapSource):
    """A standby whose rows are others, and that is gone in the midst of a batch."""

    async def runs(
        self, after: Mark, until_id: int, *, from_primary: bool = False
    ) -> AsyncGenerator[Run, None]:
        async for run in super().runs(after, until_id, from_primary=from_primary):
            forged = replace(run.events[0], payload=b"forged")
            yield replace(run, events=[forged, *run.events[1:]])
            if not run.end.is_batch_end:
                raise RetryError("the server is away")


async def test_batch_that_two_servers_have_read_is_no_proof() -> None:
    chain = chain_of(3, 10, 2)
    standby = BreakingOff(lambda: chain, is_primary=False, page_rows=5)
    both = PreferredSources([standby, MemoryGapSource(lambda: chain)])
    with pytest.raises(RetryError, match=f"broke off within the batch of id {chain.ids[8]}"):
        await fold_up_to(both, WHOLE, None, Moment(id=chain.ids[-1]))
    found = await fold_up_to(both, WHOLE, None, Moment(id=chain.ids[-1]))
    assert found.state == chain.ids, "the standby is avoided for a while"


async def test_event_time_takes_the_orders_that_are_not_later_wherever_they_are() -> None:
    chain = chain_of(3)
    times = [20, 10, 30, 25, 5]
    pid = chain.ids[-1]
    chain.add_events(
        [
            Event(pid + n + 1, pid + n, f"{n}", 10**18 + time * 10**9, b"x")
            for n, time in enumerate(times)
        ]
    )
    moment = datetime.fromtimestamp(10**9 + 27, UTC)
    found = await state_of(chain, event=moment)
    assert found.state == [*chain.ids[:3], pid + 1, pid + 2, pid + 4, pid + 5]
    found = await state_of(chain, event=moment - timedelta(seconds=20))
    assert (found.state, found.id) == ([*chain.ids[:3], pid + 5], pid + 5)


async def test_group_has_its_orders_alone_and_the_id_of_the_moment() -> None:
    chain = chain_of(30)
    for group in ("even", "odd"):
        found = await state_of(chain, BY_PAYLOAD, group, id=chain.ids[-1])
        assert found.state == [each.id for each in chain.events if of_payload(each) == group]
        assert (found.group, found.rows, found.id) == (group, len(found.state), chain.ids[-1])


async def test_snapshot_up_to_the_moment_spares_the_orders_before_it(tmp_path: Path) -> None:
    chain = chain_of(5, 5, 5)
    store = FileSnapshotStore(tmp_path, chain.chain_id)
    fold: Fold[list[int]] = Fold(
        start=lambda _: [], step=add_ids, restore=lambda _, state: [*state]
    )
    for at in (3, 7):
        mark = chain.mark(chain.ids[at])
        await store.save(Snapshot(mark=mark, state=bytes(chain.ids[: at + 1])))
    for at in range(15):
        found = await state_of(chain, fold, id=chain.ids[at], snapshots=store)
        assert found.state == chain.ids[: at + 1]
        begun = max((each for each in (3, 7) if each <= at), default=None)
        assert found.after_id == (0 if begun is None else chain.ids[begun])
        assert found.rows == (at + 1 if begun is None else at - begun)
    timed = await state_of(chain, fold, event=datetime.now(UTC), snapshots=store)
    assert (timed.after_id, timed.state) == (0, chain.ids), "it may hold later orders"


async def test_group_that_no_snapshot_knows_begins_with_its_first_order(tmp_path: Path) -> None:
    chain = chain_of(5, 5)
    store = FileSnapshotStore(tmp_path, chain.chain_id)
    fold = Fold(start=lambda _: [0], step=add_ids, group=of_payload, restore=lambda *_: None)
    await store.save(Snapshot(mark=chain.mark(chain.ids[4]), state=b""))
    groups = [of_payload(each) for each in chain.events]
    group = groups[-1]
    found = await state_of(chain, fold, group, id=chain.ids[-1], snapshots=store)
    later = [
        each.id for each, its in list(zip(chain.events, groups, strict=True))[5:] if its == group
    ]
    assert found.state == [0, *later]


async def test_snapshot_that_restores_nothing_is_no_start_of_a_whole_chain(tmp_path: Path) -> None:
    chain = chain_of(5, 5)
    store = FileSnapshotStore(tmp_path, chain.chain_id)
    fold: Fold[list[int]] = Fold(start=lambda _: [], step=add_ids, restore=lambda *_: None)
    await store.save(Snapshot(mark=chain.mark(chain.ids[4]), state=b""))
    with pytest.raises(InputError, match=f"state of the snapshot after id {chain.ids[4]} was not"):
        await state_of(chain, fold, id=chain.ids[-1], snapshots=store)


async def test_snapshot_of_a_row_that_the_chain_does_not_have_is_refused(tmp_path: Path) -> None:
    chain, restored = chain_of(5, 5), chain_of(5)
    restored.add(5, skip=1_000)
    store = FileSnapshotStore(tmp_path, chain.chain_id)
    fold: Fold[list[int]] = Fold(start=lambda _: [], step=add_ids, restore=lambda *_: [])
    mark = replace(chain.mark(chain.ids[4]), id=chain.ids[6])
    await store.save(Snapshot(mark=mark, state=b""))
    assert (await state_of(chain, fold, id=chain.ids[-1], snapshots=store)).state == chain.ids[7:]
    with pytest.raises(InputError, match="the database has no such row"):
        await state_of(restored, fold, id=restored.ids[-1], snapshots=store)


async def test_snapshot_at_the_moment_needs_no_later_batch(tmp_path: Path) -> None:
    chain = chain_of(5, 3)
    chain.batches[1] = replace(chain.batches[1], seal=bytes(32))
    store = FileSnapshotStore(tmp_path, chain.chain_id)
    fold: Fold[list[int]] = Fold(start=lambda _: [], step=add_ids, restore=lambda *_: [1])
    await store.save(Snapshot(mark=chain.mark(chain.ids[4]), state=b""))
    found = await state_of(chain, fold, id=chain.ids[4], snapshots=store)
    assert (found.state, found.rows, found.after_id) == ([1], 0, chain.ids[4])


async def test_commit_time_is_proven_also_where_a_snapshot_has_its_last_order(
    tmp_path: Path,
) -> None:
    chain = chain_of(5, 3, 4)
    store = FileSnapshotStore(tmp_path, chain.chain_id)
    fold: Fold[list[int]] = Fold(
        start=lambda _: [], step=add_ids, restore=lambda _, state: [*state]
    )
    for at in (4, 7):
        mark = chain.mark(chain.ids[at])
        await store.save(Snapshot(mark=mark, state=bytes(chain.ids[: at + 1])))
    moment = FIRST_COMMIT + timedelta(microseconds=1)
    found = await state_of(chain, fold, committed=moment, snapshots=store)
    assert (found.state, found.after_id) == (chain.ids[:8], chain.ids[4])
    batch = chain.batches[1]
    chain.batches[1] = replace(batch, committed_at_us=batch.committed_at_us - 1)
    with pytest.raises(BatchDamaged):
        await state_of(chain, fold, committed=moment, snapshots=store)


async def test_snapshot_of_another_chain_is_refused(tmp_path: Path) -> None:
    chain, other = chain_of(5, 5), Chain(seed=1)
    other.add(5)
    fold: Fold[list[int]] = Fold(start=lambda _: [], step=add_ids, restore=lambda *_: [])
    store = FileSnapshotStore(tmp_path, chain.chain_id)
    mark = other.mark()
    await store.save(Snapshot(mark=mark, state=b""))
    with pytest.raises(InputError, match="the database has another seal there"):
        await state_of(chain, fold, id=chain.ids[-1], snapshots=store)
    foreign = FileSnapshotStore(tmp_path, chain.chain_id + 1)
    with pytest.raises(SettingError, match="chain of the snapshots was 8, expected chain 7"):
        await state_of(chain, fold, id=1, snapshots=foreign)
    with pytest.raises(SettingError, match="restore of the fold was not given"):
        await state_of(chain, WHOLE, id=1, snapshots=store)


@pytest.mark.parametrize(
    ("fold", "group", "moment", "expected"),
    [
        (WHOLE, "even", {"id": 3}, "group was 'even', expected none: the fold has one state"),
        (BY_PAYLOAD, None, {"id": 3}, "group was not given, expected the group"),
        (BY_PAYLOAD, "other", {"id": 3}, "group was 'other', expected a group that has orders"),
        (WHOLE, None, {}, "moment was not given, expected one of id=ID"),
        (WHOLE, None, {"id": 3, "event": FIRST_COMMIT}, "moment was 'id and event'"),
        (WHOLE, None, {"id": 10**6}, "id was 1000000, expected an id up to the head of the chain"),
        (
            WHOLE, None, {"committed": FIRST_COMMIT - timedelta(seconds=1)},
            "expected a moment at or after the first order of chain 7",
        ),
        (
            WHOLE, None, {"event": datetime(1969, 1, 1, tzinfo=UTC)},
            "moment was 'event 1969-01-01 00:00:00+00:00', expected a moment at or after the first",
        ),
        (WHOLE, None, {"committed": datetime(9999, 1, 1, tzinfo=UTC)}, "a time that is over"),
        (WHOLE, None, {"committed": datetime(2025, 1, 1)}, "committed was"),  # noqa: DTZ001
    ],
)  # fmt: skip
async def test_what_cannot_be_answered_is_refused_in_one_line(
    fold: Fold[Any], group: str | None, moment: dict[str, Any], expected: str
) -> None:
    with pytest.raises(SettingError) as refused:
        await state_of(chain_of(5), fold, group, **moment)
    assert expected in str(refused.value)


@pytest.mark.parametrize("where", ["start", "step", "group", "digest"])
async def test_error_of_the_fold_names_the_orders(where: str) -> None:
    def wrong(*_: object) -> Any:
        raise KeyError("price")

    functions: dict[str, Any] = {"start": lambda _: [], "step": add_ids, where: wrong}
    chain = chain_of(4, 4)
    group = "even" if where == "group" else None
    with pytest.raises(InputError, match="was \"KeyError: 'price'\", expected no error") as refused:
        await state_of(chain, Fold(**functions), group, id=chain.ids[-1])
    orders = f"the orders {chain.ids[0]} to {chain.ids[3]}"
    assert (f"after id {chain.ids[-1]}" if where == "digest" else orders) in str(refused.value)


async def test_digest_that_is_no_bytes_is_refused() -> None:
    def hex_text(_: list[int]) -> Any:
        return "0a"

    fold = Fold(start=lambda _: list[int](), step=add_ids, digest=hex_text)
    with pytest.raises(InputError, match="digest of the state after id 1 was 'str', expected byt"):
        await state_of(chain_of(5), fold, id=1)


async def test_standby_that_lags_is_no_answer() -> None:
    chain = chain_of(5)
    with pytest.raises(NotYetReadable):
        await state_of(chain, id=chain.ids[-1] + 1, is_primary=False)
    for moment in ("committed", "event"):
        source = MemoryGapSource(lambda: chain, is_primary=False)
        source.runs = None  # type: ignore[assignment, method-assign] # nothing is read first
        later: Any = {moment: FIRST_COMMIT + timedelta(days=1)}
        with pytest.raises(RetryError, match="only a standby answers"):
            await fold_up_to(source, WHOLE, None, Moment(**later))
    assert (await state_of(chain, id=chain.ids[-1], is_primary=False)).state == chain.ids


class AwayAfterTheSearch(MemoryGapSource):
    """A primary that finds the place of a commit's time, and is away then."""

    is_away = False

    async def standing(self, at_id: int, batch_id: int | None = None) -> ChainPosition:
        if self.is_away:
            raise RetryError("the server is away")
        return await super().standing(at_id, batch_id)

    async def row_before_time(self, time_us: int) -> int:
        found = await super().row_before_time(time_us)
        self.is_away = True
        return found


@pytest.mark.parametrize("batches", [1, 2, 3])
async def test_standby_that_lags_behind_what_the_primary_has_found_is_no_answer(
    batches: int,
) -> None:
    chain = chain_of(3, 4, 2)
    lagging = chain_of(*(3, 4, 2)[:batches])
    primary = AwayAfterTheSearch(lambda: chain)
    source = PreferredSources([MemoryGapSource(lambda: lagging, is_primary=False), primary])
    moment = Moment(committed=FIRST_COMMIT + timedelta(microseconds=1))
    if batches < 3:
        with pytest.raises(NotYetReadable):
            await fold_up_to(source, WHOLE, None, moment)
    else:
        found = await fold_up_to(source, WHOLE, None, moment)
        assert (found.state, found.is_final) == (chain.ids[:7], True)


@pytest.mark.parametrize("moment", [{"committed": FIRST_COMMIT}, {"event": datetime.now(UTC)}])
async def test_rows_that_end_before_the_head_are_no_answer(moment: dict[str, Any]) -> None:
    chain = chain_of(3, 4)

    class Ending(MemoryGapSource):
        async def runs(
            self, after: Mark, until_id: int, *, from_primary: bool = False
        ) -> AsyncGenerator[Run, None]:
            async for run in super().runs(after, chain.ids[2], from_primary=from_primary):
                yield run

    with pytest.raises(RetryError, match=f"no rows came after {chain.ids[2]}, and the head is"):
        await fold_up_to(Ending(lambda: chain), WHOLE, None, Moment(**moment))


@pytest.mark.parametrize("has_ids", [False, True])
async def test_rows_that_were_lost_at_a_fail_over_are_no_answer(*, has_ids: bool) -> None:
    lost, chain = chain_of(3, 4, 5, 2), chain_of(3, 4)
    if has_ids:
        chain.add_events([replace(each, payload=b"other") for each in lost.batches[2].events])
    chain.add(9, skip=1_000)
    standby = MemoryGapSource(lambda: lost, is_primary=False, page_rows=5)
    primary = AwayAfterTheSearch(lambda: chain)
    both = PreferredSources([standby, primary])
    with pytest.raises(SealMismatch if has_ids else ForkFound):
        await fold_up_to(both, WHOLE, None, Moment(id=lost.ids[9]))
    found = await fold_up_to(both, WHOLE, None, Moment(id=lost.ids[3]))
    assert found.state == chain.ids[:4], "both have the batch"
    primary.is_away = True
    found = await fold_up_to(both, WHOLE, None, Moment(id=lost.ids[9]))
    assert found.state == lost.ids[:10], "no primary knows better"


async def test_fold_meets_payloads_of_every_version_as_of_today(
    orderchain_memory_chain: MemoryChain,
) -> None:
    def version(payload: bytes) -> int:
        return payload[0]

    def add(state: list[bytes], orders: Sequence[Event]) -> tuple[list[bytes], tuple[()]]:
        return state + [order.payload for order in orders], ()

    steps = {1: lambda old: b"\2" + old[1:] + b"!", 2: lambda old: b"\3" + old[1:] + b"?"}
    fold = Fold(
        start=lambda _: list[bytes](), step=add, version=version, upcasts=steps,
        group=lambda order: "today" if order.payload[0] == 3 else "older",
    )  # fmt: skip
    chain = orderchain_memory_chain
    events = chain.commit([b"\1a", b"\2b", b"\3c"])
    config = ReceiverConfig(chain_id=chain.chain_id)
    found = await state_as_of(
        config, fold, "today", id=events[-1].id, gap_source=chain.gap_source()
    )
    assert found.state == [b"\3a!?", b"\3b?", b"\3c"]


async def test_source_is_of_the_chain_and_closed_whatever_is_wrong() -> None:
    given: list[tuple[int, int | None, str]] = [
        (1, 1, "chain of the gap source was 7, expected chain 1"),
        (7, None, "moment was not given"),
    ]
    for chain_id, at_id, expected in given:
        source = MemoryGapSource(lambda: chain_of(5))
        config = ReceiverConfig(chain_id=chain_id)
        with pytest.raises(SettingError, match=expected):
            await state_as_of(config, WHOLE, id=at_id, gap_source=source)
        assert source.is_closed


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("17", Moment(id=17)),
        ("committed:2026-01-31T09:30", Moment(committed=datetime(2026, 1, 31, 9, 30, tzinfo=UTC))),
        (
            "event:2026-01-31T09:30+08:00",
            Moment(event=datetime.fromisoformat("2026-01-31T09:30+08:00")),
        ),
    ],
)
def test_moment_is_an_id_or_a_time_with_its_clock(text: str, moment: Moment) -> None:
    assert Moment.parse(text) == moment


@pytest.mark.parametrize(
    "text", ["2026-01-31T09:30Z", "event:noon", "yesterday", "committed:", "1.5"]
)
def test_time_without_its_clock_is_refused_with_the_remedy(text: str) -> None:
    with pytest.raises(SettingError, match="committed:2026-01-31T09:30Z"):
        Moment.parse(text)


@pytest.mark.parametrize("time", ["0001-01-01T00:00+01:00", "9999-12-31T23:59-01:00"])
@pytest.mark.parametrize("clock", ["committed", "event"])
def test_time_that_utc_does_not_have_is_refused(clock: str, time: str) -> None:
    with pytest.raises(SettingError, match="expected a time of the years 1 to 9999 UTC"):
        Moment.parse(f"{clock}:{time}")
