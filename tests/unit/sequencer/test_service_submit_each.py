"""Orders of one call that count each for themselves, with and without an intake."""

import asyncio
from typing import Any

import pytest

from chain_kernel.errors import IntakeMoved, KeyConflict, NumberOutOfOrder, OrderError
from chain_kernel.limits import KEY_BYTES_MAX, PAYLOAD_BYTES_MAX
from chain_kernel.model import IntakeMark, is_linked
from chain_kernel.testing.memory_store import CommitFault
from sequencer import Ack, Order, Refusal
from tests.builders.orders import make_orders

from .builders import World

SOURCE = "topic:t:0"


def mark(position: int, previous: int | None = None) -> IntakeMark:
    return IntakeMark(source=SOURCE, position=position, digest=b"d", previous=previous)


def rejects_of(world: World) -> dict[int, tuple[str | None, str]]:
    return {
        position: (reject.key, reject.reason)
        for (_, position), reject in world.chain.rejects.items()
    }


def mixed_orders() -> list[Order | Refusal]:
    """Good ones at 0, 3, 6 and 8, a repeat at 4; the others cannot be taken."""
    return [
        Order("a", b"1"),
        Order("", b"1"),
        Order("long", bytes(PAYLOAD_BYTES_MAX + 1)),
        Order("c#5", b"1", 7),
        Order("a", b"1"),
        Order("a", b"2"),
        Order("b", b"1"),
        Refusal("no\0key", OrderError("value", None, "an order")),
        Order("c#6", b"1"),
        Order("c#4", b"1"),
    ]


POSITIONS = list(range(10, 30, 2))


async def test_bad_orders_get_their_error_and_harm_no_other(world: World) -> None:
    async with world.sequencer() as sequencer:
        outcomes = await sequencer.submit_each(mixed_orders())
    kinds = [type(outcome) for outcome in outcomes]
    assert kinds == [
        Ack, OrderError, OrderError, Ack, Ack, KeyConflict, Ack, OrderError, Ack, NumberOutOfOrder,
    ]  # fmt: skip
    assert outcomes[4] == outcomes[0]
    assert world.keys() == ["a", "c#5", "b", "c#6"]
    assert is_linked(0, world.rows())
    given = {outcome.id for outcome in outcomes if isinstance(outcome, Ack)}
    assert [row.id for row in world.rows()] == sorted(given)
    assert len(world.chain.batches) == 1
    assert rejects_of(world) == {}


async def test_intake_stores_what_was_refused_where_it_stands(world: World) -> None:
    async with world.sequencer() as sequencer:
        await sequencer.submit_each(mixed_orders(), intake=mark(30), positions=POSITIONS)
        assert await sequencer.intake(SOURCE) == mark(30)
    found = rejects_of(world)
    assert {position: key for position, (key, _) in found.items()} == {
        12: None,
        14: "long",
        20: "a",
        24: None,
        28: "c#4",
    }
    assert found[12][1] == f"key was '0 bytes', expected 1 to {KEY_BYTES_MAX} bytes of UTF-8"
    assert "262145 bytes" in found[14][1]
    assert "became" in found[20][1] or "came first" in found[20][1]
    assert found[28][1] == "key was 'c#4', expected a number above 6: this one was never accepted"


@pytest.mark.parametrize("window", [0, 1_000])
@pytest.mark.parametrize("previous", [None, 2, 4, 9])
async def test_mark_that_follows_none(world: World, previous: int | None, window: int) -> None:
    """The mark of a second intake, or one that passes by orders that were not taken."""
    async with world.sequencer(key_window_rows=window) as sequencer:
        await sequencer.submit_each([Order("a", b"")], intake=mark(3), positions=[0])
        stale = sequencer.submit_each(
            [Order("stale", b"")], intake=mark(10, previous), positions=[9]
        )
        whole = sequencer.submit_many([Order("whole", b"")], intake=mark(10, previous))
        other = sequencer.submit("other", b"")
        outcomes = await asyncio.gather(stale, whole, other, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [IntakeMoved, IntakeMoved, Ack]
        assert await sequencer.intake(SOURCE) == mark(3)
        await sequencer.submit_each([Order("b", b"")], intake=mark(4, 3), positions=[3])
    assert world.keys() == ["a", "other", "b"]
    assert world.chain.intake[SOURCE] == mark(4)


@pytest.mark.parametrize("window", [0, 1_000])
async def test_mark_that_an_operator_moved_is_followed_by_an_intake_that_begins_there(
    world: World, window: int
) -> None:
    async with world.sequencer(key_window_rows=window) as sequencer:
        await sequencer.submit_each([Order("a", b"")], intake=mark(3), positions=[0])
        world.chain.intake[SOURCE] = mark(7)
        stale, *others = await asyncio.gather(
            sequencer.submit_each([Order("stale", b"")], intake=mark(5, 4), positions=[4]),
            sequencer.submit_each([Order("b", b"")], intake=mark(8, 7), positions=[7]),
            sequencer.submit_each([Order("c", b"")], intake=mark(9, 8), positions=[8]),
            return_exceptions=True,
        )
        await sequencer.submit_each([Order("d", b"")], intake=mark(10, 9), positions=[9])
    assert isinstance(stale, IntakeMoved)
    assert [len(acks) for acks in others if not isinstance(acks, BaseException)] == [1, 1]
    assert world.keys() == ["a", "b", "c", "d"]
    assert world.chain.intake[SOURCE] == mark(10)


@pytest.mark.parametrize("name", ["submit_many", "submit_each"])
@pytest.mark.parametrize("count", [1, 20])
async def test_list_that_is_used_again_during_a_call_changes_no_order(
    world: World, name: str, count: int
) -> None:
    pages = [make_orders(count, start=start) for start in (0, count)]
    keys = [order.key for page in pages for order in page]
    async with world.sequencer() as sequencer:
        calls = [asyncio.create_task(getattr(sequencer, name)(page)) for page in pages]
        await asyncio.sleep(0)  # both are queued
        for page in pages:
            page.clear()
        outcomes = await asyncio.gather(*calls)
    assert world.keys() == keys
    assert [ack.id for acks in outcomes for ack in acks] == [row.id for row in world.rows()]
    assert [len(acks) for acks in outcomes] == [count, count]
    assert (len(world.chain.batches), sequencer.stats().queue_rows) == (1, 0)


@pytest.mark.parametrize("fault", list(CommitFault))
@pytest.mark.parametrize("with_rows", [True, False])
async def test_fault_moves_all_together(world: World, fault: CommitFault, with_rows: bool) -> None:
    orders = mixed_orders()
    async with world.sequencer() as sequencer:
        if not with_rows:
            await sequencer.submit_each(orders)
        epoch = world.chain.epoch
        world.store.faults.append(fault)
        outcomes = await sequencer.submit_each(orders, intake=mark(30), positions=POSITIONS)
        await sequencer.submit("z", b"")
        # Without a row there is no commit to go wrong; the fault meets the next order.
        assert world.chain.epoch == epoch + 1
        assert await sequencer.intake(SOURCE) == mark(30)
    assert sum(isinstance(outcome, Ack) for outcome in outcomes) == 5
    assert sorted(rejects_of(world)) == [12, 14, 20, 24, 28]
    assert world.keys() == ["a", "c#5", "b", "c#6", "z"]
    assert is_linked(0, world.rows())


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ({}, "orders was 0, expected 1 to 10"),
        ({"count": 11}, "orders was 11, expected 1 to 10"),
        ({"count": 1, "intake": mark(1)}, "positions was 'none', expected one for each of 1"),
        ({"count": 2, "intake": mark(1), "positions": [0]}, "positions was 1"),
        ({"count": 1, "intake": mark(1), "positions": [-1]}, "position was -1"),
        ({"count": 1, "intake": mark(2**63), "positions": [1]}, "position was 9223372036854775808"),
    ],
)
async def test_unfit_call_is_refused_whole(
    world: World, arguments: dict[str, Any], part: str
) -> None:
    arguments = dict(arguments)
    orders = [Order(f"k{n}", b"") for n in range(arguments.pop("count", 0))]
    async with world.sequencer(batch_rows_max=10) as sequencer:
        with pytest.raises(OrderError, match=part):
            await sequencer.submit_each(orders, **arguments)
    assert world.rows() == []


async def test_reject_with_a_reason_that_no_database_takes_is_stored_readable(world: World) -> None:
    refusal = Refusal(None, OrderError("value", None, "no \0 and no \udc80, " + "x" * 5_000))
    async with world.sequencer() as sequencer:
        await sequencer.submit_each([refusal], intake=mark(1), positions=[0])
    (reject,) = world.chain.rejects.values()
    assert reject.reason.startswith(r"value was not given, expected no \x00 and no \udc80, xxx")
    assert len(reject.reason) == 1_000
