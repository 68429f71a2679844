"""Coroutines of the verifier, run for callers with and without a loop."""

import asyncio
import threading

from chain_verifier.runner import Runner
from chain_verifier.server import run_alone


async def where() -> tuple[int, str]:
    await asyncio.sleep(0)
    return id(asyncio.get_running_loop()), threading.current_thread().name


def test_caller_without_a_loop_runs_them_itself_in_one_loop() -> None:
    runner = Runner()
    first, second = runner.run(where()), runner.run(where())
    runner.close()
    assert first == second
    assert first[1] == threading.current_thread().name


async def test_caller_in_a_loop_as_in_a_notebook_gets_a_thread() -> None:
    runner = Runner()
    first, second = runner.run(where()), runner.run(where())
    runner.close()
    assert first == second
    assert first[0] != id(asyncio.get_running_loop())
    assert first[1] != threading.current_thread().name
    assert run_alone(where)()[1] != threading.current_thread().name
