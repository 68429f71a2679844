"""Questions of many chains that share a statement."""

import asyncio
from collections.abc import Mapping

import pytest

from chain_kernel.errors import RetryError
from sequencer.stores.together import Together
from tests.virtual import virtual


class Asked:
    """Answers with twice the question; holds each answer back until `answers` is set."""

    def __init__(self) -> None:
        self.calls: list[dict[int, int]] = []
        self.answers = asyncio.Event()
        self.error: Exception | None = None

    async def __call__(self, questions: Mapping[int, int]) -> dict[int, int]:
        self.calls.append(dict(questions))
        await self.answers.wait()
        if self.error is not None:
            raise self.error
        return {chain: 2 * question for chain, question in questions.items() if chain != 13}


@virtual
async def test_chains_that_ask_at_one_time_or_during_an_answer_share_a_statement() -> None:
    asked = Asked()
    together = Together(asked, 0.05)
    early = [asyncio.create_task(together.ask(each, each)) for each in (1, 2, 13)]
    await asyncio.sleep(0.1)
    late = [asyncio.create_task(together.ask(each, each + 1)) for each in (1, 3)]
    await asyncio.sleep(1)
    assert len(asked.calls) == 1, "a question after the statement was sent is for the next"
    asked.answers.set()
    assert await asyncio.gather(*early, *late) == [2, 4, None, 4, 8]
    assert asked.calls == [{1: 1, 2: 2, 13: 13}, {1: 2, 3: 4}]


@virtual
async def test_error_is_raised_to_all_that_asked_and_to_none_that_asks_later() -> None:
    asked = Asked()
    asked.answers.set()
    asked.error = RetryError("gone")
    together = Together(asked)
    found = await asyncio.gather(
        *(together.ask(each, 0) for each in (1, 2)), return_exceptions=True
    )
    assert [str(each) for each in found] == ["gone", "gone"]
    asked.error = None
    assert await together.ask(1, 4) == 8


@virtual
async def test_chain_that_is_cancelled_takes_the_answer_of_no_other() -> None:
    asked = Asked()
    together = Together(asked)
    one, other = (asyncio.create_task(together.ask(each, each)) for each in (1, 2))
    await asyncio.sleep(1)
    one.cancel()
    with pytest.raises(asyncio.CancelledError):
        await one
    asked.answers.set()
    assert await other == 4


@virtual
async def test_close_ends_what_is_under_way_and_answers_all_that_wait() -> None:
    """A connect that went on would leave a connection that nobody closes."""
    asked = Asked()
    together = Together(asked, 0.05)
    early = asyncio.create_task(together.ask(1, 1))
    await asyncio.sleep(1)
    late = asyncio.create_task(together.ask(2, 2))
    await asyncio.sleep(0)
    await together.close()
    found = await asyncio.gather(early, late, return_exceptions=True)
    assert [str(each) for each in found] == ["the connection is closed"] * 2
    asked.answers.set()
    assert len(asked.calls) == 1
    assert await together.ask(1, 4) == 8
