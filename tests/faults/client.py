"""A client that never stops asking until each of its orders has an answer."""

import random

from .processes import Acked, Worker


class Client:
    """A client that submits without end, and after a crash submits again what was not answered."""

    def __init__(self, seeded: random.Random) -> None:
        self.acked: dict[str, Acked] = {}
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

    def note(self, worker: Worker) -> None:
        """Take over what `worker` said: an order once acknowledged never moves."""
        for key, order in worker.acked.items():
            assert self.acked.setdefault(key, order) == order, "G4: another place for the same key"

    async def catch_up(self, worker: Worker, dead: Worker) -> None:
        """Submit again what `dead` left open, and some that it had answered."""
        open_keys = [key for key in dead.submitted if key not in dead.acked]
        known = list(self.acked)
        again = self._random.sample(known, min(20, len(known))) + open_keys
        for start in range(0, len(again), 500):
            await worker.submit(again[start : start + 500], together=self._random.random() < 0.5)
        await worker.until_answered(again)
        assert not worker.refused
        self.note(worker)
