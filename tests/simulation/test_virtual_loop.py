"""Virtual time, and the processes that live in it."""

import asyncio

import pytest

from chain_kernel.errors import StoppedError
from chain_kernel.testing.virtual_loop import (
    Deadlock,
    Process,
    VirtualLoop,
    check_alive,
    current_process,
    run_virtual,
    virtual_clock,
)
from tests.virtual import virtual


def test_sleeping_for_days_takes_no_time() -> None:
    """Else it would end by the time limit of a test."""
    assert run_virtual(asyncio.sleep(86_400.0, "done"), seconds=100_000.0) == "done"


def test_clock_moves_by_what_was_waited_for_and_the_wall_goes_with_it() -> None:
    async def wait() -> tuple[int, int]:
        clock = virtual_clock()
        mono, wall = clock.monotonic_ns(), clock.wall_ns()
        await asyncio.sleep(1.5)
        return clock.monotonic_ns() - mono, clock.wall_ns() - wall

    assert run_virtual(wait()) == (1_500_000_000, 1_500_000_000)


def test_wait_without_a_deadline_for_what_never_comes_is_reported() -> None:
    async def wait() -> None:
        await asyncio.get_running_loop().create_future()

    with (
        asyncio.Runner(loop_factory=VirtualLoop) as runner,
        pytest.raises(Deadlock, match="never comes"),
    ):
        runner.run(wait())


def test_main_that_takes_too_long_is_broken_off() -> None:
    with pytest.raises(TimeoutError):
        run_virtual(asyncio.sleep(11.0), seconds=10.0)


def order_of(seed: int | None) -> list[int]:
    seen: list[int] = []

    async def main() -> None:
        async def step(number: int) -> None:
            seen.append(number)
            await asyncio.sleep(0)
            seen.append(number)

        await asyncio.gather(*(step(number) for number in range(6)))

    run_virtual(main(), seed=seed)
    return seen


def test_ready_tasks_without_a_seed_run_in_turn() -> None:
    assert order_of(None) == [*range(6), *range(6)]


def test_ready_tasks_with_a_seed_run_in_its_order() -> None:
    assert order_of(1) == order_of(1)
    assert len({tuple(order_of(seed)) for seed in range(20)}) > 10


def test_work_for_a_thread_is_done_in_place_and_its_error_comes_back() -> None:
    async def work() -> int:
        with pytest.raises(ZeroDivisionError):
            await asyncio.to_thread(lambda: 1 // 0)
        return await asyncio.to_thread(lambda: 7)

    assert run_virtual(work()) == 7


def test_clock_outside_of_virtual_time_is_refused() -> None:
    async def ask() -> None:
        virtual_clock()

    with pytest.raises(RuntimeError, match="run_virtual"):
        asyncio.run(ask())


async def beat(seen: list[float]) -> None:
    while True:
        await asyncio.sleep(1.0)
        seen.append(virtual_clock().time())


@virtual
async def test_paused_process_stands_still_and_catches_up() -> None:
    seen: list[float] = []
    process = Process("p")
    process.run(beat(seen))
    await asyncio.sleep(2.5)
    process.pause()
    await asyncio.sleep(10.0)
    assert len(seen) == 2
    process.resume()
    await asyncio.sleep(0)
    await asyncio.sleep(0.6)
    assert len(seen) == 3, "the beat that fell due in the pause comes once, and late"
    process.kill()


@virtual
async def test_tasks_of_a_process_are_its_own_and_so_are_theirs() -> None:
    names: list[str | None] = []

    async def tell() -> None:
        process = current_process()
        names.append(process.name if process else None)

    async def run() -> None:
        await tell()
        await asyncio.create_task(tell())

    await Process("a").run(run())
    await tell()
    assert names == ["a", "a", None]


@virtual
async def test_killed_process_is_cancelled_and_reaches_nothing() -> None:
    shown: list[Exception] = []

    async def work() -> None:
        try:
            await asyncio.sleep(100.0)
        finally:
            try:
                check_alive()
            except StoppedError as error:
                shown.append(error)

    process = Process("p")
    task = process.run(work())
    await asyncio.sleep(1.0)
    process.pause()
    process.kill()
    await asyncio.wait([task])
    assert task.cancelled()
    assert "p was killed" in str(shown[0])
