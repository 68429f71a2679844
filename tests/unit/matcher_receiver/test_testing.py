"""The chain in memory: a service that receives is killed at every await, and nothing is unseen."""

import asyncio
import inspect
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from chain_kernel.errors import SettingError
from chain_kernel.handlers import NotAsync
from chain_kernel.model import Run, Snapshot
from chain_kernel.tasks import SelfCancelled
from matcher_receiver import FileSnapshotStore, Receiver, ReceiverConfig, ReceiverTuning
from matcher_receiver.testing import Kill, MemoryChain, NotWorkedOff
from tests.lanes import at_night

APPLY = "INSERT INTO effect VALUES ($1)"
ORDERS = 20
SEEDS = [*range(3), *at_night(*range(3, 20))]
Service = Callable[[Receiver], Awaitable[None]]


@pytest.fixture(params=SEEDS)
def chain(request: pytest.FixtureRequest) -> Iterator[MemoryChain]:
    """One for each seed, with orders."""
    made = MemoryChain(request.param)
    made.tables["effect"] = Counter()
    made.answer(APPLY, lambda tables, key: tables["effect"].update([key]))
    for number in range(ORDERS):
        made.commit([b"%d" % number] * 2)
    yield made
    made.close()


def effects(chain: MemoryChain) -> set[int]:
    """How often orders had an effect."""
    assert set(chain.tables["effect"]) == {event.key for event in chain.committed}
    return set(chain.tables["effect"].values())


def careful(chain: MemoryChain) -> Service:
    async def serve(receiver: Receiver) -> None:
        connection = await chain.connect()
        async for run in receiver:
            async with connection.transaction():
                for event in run.events:
                    await connection.execute(APPLY, event.key)
                await receiver.checkpoint(run, connection=connection)

    return serve


def stored(chain: MemoryChain, name: str = "receiver") -> int:
    mark = chain.checkpoint(name)
    assert mark is not None
    return mark.id


def lines_of(kills: list[Kill], function: Service) -> set[int]:
    """The lines of a function, from its first one, at which runs were in hand."""
    _, first = inspect.getsourcelines(function)
    here = [kill.where for kill in kills if kill.handed_id > kill.stored_id]
    return {int(where.split()[0].split(":")[1]) - first for where in here}


def test_service_that_is_right_is_killed_at_each_await_and_applies_each_order_once(
    chain: MemoryChain,
) -> None:
    service = careful(chain)
    kills = chain.work_off(service)
    assert effects(chain) == {1}
    assert stored(chain) == chain.committed[-1].id
    # The transaction's begin and commit, and the statement; the checkpoint awaits nothing here.
    assert lines_of(kills, service) == {3, 5}
    of_first = [kill for kill in kills if kill.stored_id == 0 < kill.handed_id]
    assert len(of_first) >= 1 + 4 + 1, "begin, four orders, commit"
    assert any(kill.handed_id == kill.stored_id > 0 for kill in kills), "right after a commit"


@pytest.mark.parametrize("is_before", [True, False])
def test_effect_outside_of_the_transaction_of_the_checkpoint_is_seen(
    chain: MemoryChain, *, is_before: bool
) -> None:
    async def serve(receiver: Receiver) -> None:
        connection = await chain.connect()
        async for run in receiver:
            if not is_before:
                await receiver.checkpoint(run)
            async with connection.transaction():
                for event in run.events:
                    await connection.execute(APPLY, event.key)
            if is_before:
                await receiver.checkpoint(run)

    chain.work_off(serve)
    applied = chain.tables["effect"]
    assert max(applied.values()) > 1 if is_before else len(applied) < len(chain.committed)


def test_handler_whose_checkpoint_follows_it_repeats_what_is_not_stored(
    chain: MemoryChain,
) -> None:
    async def handle(run: Run) -> None:
        await (await chain.connect()).executemany(APPLY, [(event.key,) for event in run.events])

    kills = chain.work_off(lambda receiver: receiver.run(handle))
    assert min(effects(chain)) == 1 < max(effects(chain))
    assert any("in handle" in kill.where for kill in kills)


def test_state_in_memory_is_gone_with_each_process(chain: MemoryChain, tmp_path: Path) -> None:
    store, states = FileSnapshotStore(tmp_path, chain.chain_id), []

    async def serve(receiver: Receiver) -> None:
        state = receiver.snapshot.state if receiver.snapshot else b""
        async for run in receiver:
            state += b"".join(event.payload for event in run.events)
            await store.save(Snapshot(mark=run.end, state=state))
            await receiver.checkpoint(run)
        states.append(state)

    assert chain.work_off(serve, snapshots=store)
    assert states == [b"".join(event.payload for event in chain.committed)]


def test_orders_that_come_meanwhile_over_a_bad_link_are_applied_once(chain: MemoryChain) -> None:
    chain.dial.lost, chain.dial.repeated, chain.dial.held = 0.2, 0.1, 0.1

    async def story() -> None:
        for number in range(ORDERS):
            chain.is_broker_away = number in range(5, 10)
            chain.commit([b"%d" % number] * 5)
            await asyncio.sleep(0.05)

    tuning = ReceiverTuning(kafka_at_start="optional")
    config = ReceiverConfig(chain_id=1, name="mine", idle_seconds=1.0, tuning=tuning)
    chain.work_off(careful(chain), config, meanwhile=story())
    assert effects(chain) == {1}
    assert stored(chain, "mine") == chain.committed[-1].id


# -- tests that would show nothing ---------------------------------------------------------------


def test_kills_that_never_meet_an_order_fail_the_test() -> None:
    chain = MemoryChain()
    with pytest.raises(NotWorkedOff, match="no kill fell between an order and its checkpoint"):
        chain.work_off(careful(chain))
    chain.close()


async def ends_early(receiver: Receiver) -> None:
    await anext(receiver)


async def hangs(receiver: Receiver) -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("service", "said"),
    [
        (ends_early, r"ended after id \d+ of \d+"),
        (hangs, r"does not end: it waits at test_testing.py:\d+ in hangs, after id 0"),
    ],
)
def test_service_that_leaves_orders_fails_the_test(
    chain: MemoryChain, service: Service, said: str
) -> None:
    with pytest.raises(NotWorkedOff, match=said):
        chain.work_off(service)


@pytest.mark.parametrize(
    ("error", "raised"),
    [(ZeroDivisionError, ZeroDivisionError), (asyncio.CancelledError, SelfCancelled)],
)
def test_error_of_the_service_and_of_the_story_beside_it_is_raised(
    chain: MemoryChain, error: type[BaseException], raised: type[Exception]
) -> None:
    async def fails(_: object = None) -> None:
        await asyncio.sleep(1)
        raise error

    with pytest.raises(raised):
        chain.work_off(fails)
    with pytest.raises(raised):
        chain.work_off(careful(chain), meanwhile=fails())


def test_connection_that_outlives_the_process_is_refused(chain: MemoryChain) -> None:
    async def serve(receiver: Receiver) -> None:
        async for run in receiver:
            async with connection.transaction():
                await receiver.checkpoint(run, connection=connection)

    connection = asyncio.run(chain.connect())
    with pytest.raises(SettingError, match="expected one that this one has opened"):
        chain.work_off(serve)


def test_what_is_no_async_function_is_refused(chain: MemoryChain) -> None:
    with pytest.raises(NotAsync):
        chain.work_off(lambda _: None)  # type: ignore[arg-type, return-value]


async def test_async_test_is_refused() -> None:
    with pytest.raises(SettingError, match="a plain def"):
        MemoryChain().work_off(hangs)


def test_killed_process_reaches_nothing_at_the_end_of_the_test(chain: MemoryChain) -> None:
    last_words: list[object] = []

    async def serve(receiver: Receiver) -> None:
        async for run in receiver:
            try:
                await asyncio.sleep(1)
                await receiver.checkpoint(run)
            except BaseException:
                last_words.append(chain.checkpoint())
                await receiver.checkpoint(run)
                raise

    chain.work_off(serve)
    assert last_words == [], "no finally runs before"
    end = chain.checkpoint()
    chain.close()
    assert set(last_words) == {end} == {chain.checkpoint()}
