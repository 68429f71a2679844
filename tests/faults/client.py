"""A client that never stops asking until each of its orders has an answer."""

import random

from sequencer import Ack

from .processes import Worker


class Client:
    """A client that submits without end, and after a crash submits again what was not answered."""

    def __init__(self, seeded: random.Random) -> None:
        self.acked: dict[str, Ack] = {}
        self._random = seeded
        self._made = 0

    async def run(self, worker: Worker, rounds: int = 40) -> None:
        """Submit in calls of uneven size, some together, some one by one."""
        for _ in range(rounds):
            keys = self.new_keys(self._random.choice([1, 3, 40, 400]))
            await worker.submit(keys, together=self._random.random() < 0.5)

    def new_keys(self, count: int) -> list[str]:
        first, self._made = self._made, self._made + count
        return [f"k{number}" for number in range(first, self._made)]

    async def catch_up(self, worker: Worker, dead: Worker) -> None:
        """Submit again what `dead` left open, and some that were answered."""
        self.acked |= dead.acked
        open_keys = [key for key in dead.submitted if key not in dead.acked]
        known = list(self.acked)
        again = self._random.sample(known, min(20, len(known))) + open_keys
        for start in range(0, len(again), 500):
            await worker.submit(again[start : start + 500], together=self._random.random() < 0.5)
        await worker.until_answered(again)
        assert not worker.refused
        self.acked |= worker.acked
