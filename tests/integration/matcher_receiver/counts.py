"""A service that counts orders by group, as an original or as its shadow."""

from chain_verifier.dataframe.fold import digest_of
from orderchain import Receiver, Run
from tests.deadlines import deadline


class Counts:
    """Orders by the last digit of their id; a version that is wrong counts one of them twice."""

    def __init__(self, wrong_id: int = 0) -> None:
        self.found: dict[str, int] = {}
        self.touched: set[str] = set()
        self.wrong_id = wrong_id

    def apply(self, run: Run) -> None:
        for event in run.events:
            group = str(event.id % 3)
            self.touched.add(group)
            self.found[group] = self.found.get(group, 0) + 1 + (event.id == self.wrong_id)

    def states(self) -> dict[str, bytes]:
        touched, self.touched = self.touched, set()
        return {group: digest_of(self.found[group]) for group in touched}


async def serve(receiver: Receiver, counts: Counts, until_id: int) -> None:
    async with deadline():
        while receiver.head_delivered < until_id:
            run = await anext(receiver)
            counts.apply(run)
            await receiver.checkpoint(run, states=counts.states)
