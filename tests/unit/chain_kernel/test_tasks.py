"""Whose cancellation it is, and what is said of an error whose text cannot be had."""

import asyncio

import pytest

from chain_kernel.handlers import result_of
from chain_kernel.tasks import SelfCancelled
from chain_kernel.text import named_reason, printable, reason_of


class Mute(Exception):
    """An error of others that fails as it is asked for its text."""

    def __str__(self) -> str:
        raise ValueError("no")

    __repr__ = __str__


async def cancelled_by_itself() -> None:
    inner = asyncio.ensure_future(asyncio.sleep(60))
    inner.cancel()
    await inner


async def test_cancellation_that_nothing_asked_for_is_a_failure() -> None:
    with pytest.raises(SelfCancelled, match="the handler raised CancelledError, though its task"):
        await result_of(cancelled_by_itself())


async def test_cancellation_of_the_own_task_and_its_deadline_stay_what_they_are() -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await result_of(asyncio.sleep(60))
    task = asyncio.create_task(result_of(asyncio.sleep(60)))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_error_without_a_text_is_named_all_the_same() -> None:
    said = "no text: ValueError in its __str__"
    assert reason_of(Mute()) == printable(Mute()) == said
    assert named_reason(Mute()) == f"Mute: {said}"
    assert named_reason(TimeoutError()) == "TimeoutError"
