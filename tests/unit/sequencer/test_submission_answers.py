"""Every caller is answered, whatever part of the service ends, and however."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from chain_kernel.errors import ClockError, OrderchainError, RetryError, UnknownOutcome
from chain_kernel.model import Term, is_linked
from chain_kernel.seal import Batch
from chain_kernel.testing.memory_store import CommitFault
from sequencer import Sequencer, core
from sequencer.submission import Batcher
from tests.deadlines import deadline

from .builders import World


async def outcomes(submitted: Sequence[asyncio.Future[Any]]) -> list[Any]:
    """Return what callers were answered who never give up."""
    async with deadline():
        return await asyncio.gather(*submitted, return_exceptions=True)


async def leave(sequencer: Sequencer) -> None:
    async with deadline():
        await sequencer.__aexit__(None, None, None)


async def live(sequencer: Sequencer) -> None:
    async with deadline(), sequencer:
        await sequencer.until_stopped()


def part(name: str) -> asyncio.Task[Any]:
    """Return the task of the one service that runs."""
    (found,) = [task for task in asyncio.all_tasks() if task.get_name() == f"orderchain {name}"]
    return found


class SetClock:
    """A clock whose wall time is set by hand."""

    wall = 1_700_000_000 * 10**9

    def monotonic_ns(self) -> int:
        return int(asyncio.get_running_loop().time() * 1e9)

    def wall_ns(self) -> int:
        return self.wall


@pytest.mark.parametrize("batch_rows_max", [1, 7, 5_000])
async def test_chain_without_ids_left_answers_every_caller(
    world: World, monkeypatch: pytest.MonkeyPatch, batch_rows_max: int
) -> None:
    """The batch that finds none is made alone, or beside the commit before it."""
    monkeypatch.setattr(core, "ID_MAX", 30)
    sequencer = await world.sequencer(batch_rows_max=batch_rows_max).__aenter__()
    answers = await outcomes([sequencer.submit_nowait(f"k{n}", b"") for n in range(50)])
    rows = world.rows()
    assert [answer.id for answer in answers[: len(rows)]] == [row.id for row in rows]
    for answer in answers[len(rows) :]:
        assert isinstance(answer, OrderchainError)
        assert "no ids left" in str(answer)
    with pytest.raises(OrderchainError, match="no ids left"):
        await leave(sequencer)
    assert is_linked(0, rows)


@pytest.mark.parametrize("name", ["publisher", "lease", "keys"])
async def test_part_that_fails_ends_the_whole_service_with_its_error(
    world: World, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    class PartFailed(Exception):
        pass

    async def fail(*_: object) -> None:
        await asyncio.sleep(0)
        raise PartFailed

    path = {
        "publisher": "sequencer.publisher.Publisher.run",
        "lease": "sequencer.leadership.Leadership.keep",
        "keys": "sequencer.keys.keeper.KeyKeeper.run",
    }[name]
    monkeypatch.setattr(path, fail)
    with pytest.raises(PartFailed):
        await live(world.sequencer())


async def test_lease_that_dies_fails_a_start(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """No caller must get a sequencer whose lease stopped."""

    async def slow_load(term: Term) -> None:
        del term
        part("lease").cancel()
        await asyncio.Event().wait()  # a database that is silent

    sequencer = world.sequencer()
    monkeypatch.setattr(sequencer._keys, "load", slow_load)
    with pytest.raises(RetryError, match="lease task was cancelled"):
        async with deadline():
            await sequencer.__aenter__()
    assert not [task for task in asyncio.all_tasks() if "orderchain" in task.get_name()]


@pytest.mark.guarantee("G9")
async def test_outcome_not_found_is_unknown(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commit may have happened: no other error may say that it did not."""

    class Broken(Exception):
        pass

    async def fail(owner: str, held: Term) -> Term:
        raise Broken

    sequencer = await world.sequencer().__aenter__()
    world.store.faults.append(CommitFault.LOST_AFTER)
    monkeypatch.setattr(world.store, "take_over_again", fail)
    answers = await outcomes([sequencer.submit_nowait("a", b"")])
    assert isinstance(answers[0], UnknownOutcome)
    with pytest.raises(Broken):
        await leave(sequencer)


async def test_callers_in_line_are_answered(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(batch: Batch, **_: Any) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(world.store, "begin", never)
    monkeypatch.setattr(Batcher, "has_room", lambda self, entry: not self._entries)
    sequencer = await world.sequencer(stop_seconds=0.05).__aenter__()
    submitted = [asyncio.create_task(sequencer.submit(f"k{n}", b"")) for n in range(5)]
    await asyncio.sleep(0)
    with pytest.raises(RetryError):
        await leave(sequencer)
    answers = await outcomes(submitted)
    assert [type(answer) for answer in answers] == [UnknownOutcome] + [RetryError] * 4


async def test_clock_that_jumps_years_ahead_under_a_leader_stamps_nothing(world: World) -> None:
    clock = SetClock()
    sequencer = await world.sequencer(clock).__aenter__()
    await sequencer.submit("before", b"")
    clock.wall += 300 * 24 * 3600 * 10**9
    await sequencer.submit("months ahead", b"")
    clock.wall += 67 * 24 * 3600 * 10**9
    answers = await outcomes([sequencer.submit_nowait(f"k{n}", b"") for n in range(5)])
    assert [type(answer) for answer in answers] == [ClockError] * 5
    with pytest.raises(ClockError, match="366 days ahead of where it was"):
        await leave(sequencer)
    assert world.keys() == ["before", "months ahead"]
