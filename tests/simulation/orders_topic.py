"""Orders that come by a topic, and what must be true of what was taken from it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from sequencer.intake.topic import source_of
from tests.doubles.memory_topic import MemoryTopic

if TYPE_CHECKING:
    from collections.abc import Mapping
    from random import Random

    from chain_kernel.model import IntakeMark
    from chain_kernel.testing.memory_store import CommittedChain
    from tests.judge.judge import Judge

    from .plan import Plan

TOPIC = "orders"

Place = tuple[int, int]
"""Partition and offset."""


class OrdersTopic:
    """A topic, who fills it, and each record's fate.

    New orders become rows, in the order of their partition; repeats, contradictions and records
    without an order become no row. Rows and offsets move in one transaction: whatever is committed
    shows every record before the offset settled, and none behind it.
    """

    def __init__(self, plan: Plan, random: Random, judge: Judge) -> None:
        self.topic = MemoryTopic(plan.topic_partitions if plan.topic_records else 0)
        self._plan = plan
        self._random = random
        self._judge = judge
        self._new: dict[str, tuple[Place, bytes]] = {}
        self._kinds: dict[Place, tuple[str, str]] = {}
        self._numbers = dict.fromkeys(self.topic.logs, 0)
        # Up to where rows, and records of each partition, were looked at.
        self._rows_seen = 0
        self._settled = dict.fromkeys(self.topic.logs, 0)
        self._last_row = dict.fromkeys(self.topic.logs, -1)

    @property
    def is_used(self) -> bool:
        return self._plan.topic_records > 0

    async def live(self) -> None:
        for _ in range(self._plan.topic_records):
            self.add()
            await asyncio.sleep(self._random.expovariate(4.0))

    def add_last(self) -> None:
        """One more new order in each partition, once everything is healed."""
        for partition in self.topic.logs:
            self._add_new(partition)

    def add(self) -> None:
        partition = self._random.choice(list(self.topic.logs))
        kind = self._random.random()
        before = [key for key, (place, _) in self._new.items() if place[0] == partition]
        keyed = [key for key in before if not key.startswith(TOPIC)]
        if kind < 0.05:
            self.topic.add_marker(partition)
        elif kind < 0.1:
            self._put(partition, f"no order {partition}", None, "no order")
        elif kind < 0.25 and keyed:
            key = self._random.choice(keyed)
            self._put(partition, key, self._new[key][1], "repeat")
        elif kind < 0.3 and keyed:
            key = self._random.choice(keyed)
            self._put(partition, key, self._new[key][1] + b"!", "conflict")
        else:
            self._add_new(partition)

    def add_partition(self) -> None:
        partition = self.topic.add_partition()
        self._numbers[partition] = self._settled[partition] = 0
        self._last_row[partition] = -1

    def _add_new(self, partition: int) -> None:
        self._numbers[partition] += 1
        number = self._numbers[partition]
        kinds = ["no key", "number"] if self._plan.key_window_rows < 1_000 else ["no key", "free"]
        kind = self._random.choice(kinds)
        value = self._random.randbytes(self._random.randrange(20))
        if kind == "no key":
            key = f"{TOPIC}/{partition}#{self.topic.end[partition]}"
            self._put(partition, key, value, "new", has_key=False)
        elif kind == "number":
            self._put(partition, f"gateway {partition}#{number}", value, "new")
        else:
            self._put(partition, f"gateway {partition} order {number}", value, "new")

    def _put(
        self, partition: int, key: str, value: bytes | None, kind: str, *, has_key: bool = True
    ) -> None:
        self._judge.saw("asked", [key])  # never ended: it may be committed at any time
        offset = self.topic.add(partition, key.encode() if has_key else None, value)
        self._kinds[partition, offset] = (kind, key)
        if kind == "new" and value is not None:
            self._new[key] = ((partition, offset), value)

    def is_taken(self, intake: Mapping[str, IntakeMark]) -> bool:
        return all(_position(intake, partition) == end for partition, end in self.topic.end.items())

    def check(self, chain: CommittedChain) -> None:
        """Look at what was just committed: rows, offsets and rejects of one instant."""
        for partition in self.topic.logs:
            self._check_settled(chain, partition)
        rows = self._judge.fence.rows
        for _, _, key, _, payload in rows[self._rows_seen :]:
            if key in self._new:
                self._check_row(chain, key, payload)
        self._rows_seen = len(rows)

    def _check_settled(self, chain: CommittedChain, partition: int) -> None:
        require, position = self._judge.require, _position(chain.intake, partition)
        require(position >= self._settled[partition], "G4 intake went back", partition, position)
        for offset in range(self._settled[partition], position):
            kind, key = self._kinds.get((partition, offset), ("marker", ""))
            is_rejected = (source_of(TOPIC, partition), offset) in chain.rejects
            is_row = key in self._judge.fence.place
            shown = f"{kind} {key} at {partition}/{offset}"
            if kind == "new":
                require(is_row and not is_rejected, "G4 intake passed by an order", shown)
            elif kind == "repeat":
                require(is_row, "G4 intake passed by a repeat", shown)
            elif kind != "marker":
                require(is_rejected, "G4 intake without a reject", shown)
        self._settled[partition] = position

    def _check_row(self, chain: CommittedChain, key: str, payload: bytes) -> None:
        (partition, offset), value = self._new[key]
        require = self._judge.require
        require(payload == value, "G4 intake took another order", key)
        require(
            offset < _position(chain.intake, partition), "G4 intake: row without its offset", key
        )
        require(offset > self._last_row[partition], "G4 intake out of order", key)
        self._last_row[partition] = offset


def _position(intake: Mapping[str, IntakeMark], partition: int) -> int:
    mark = intake.get(source_of(TOPIC, partition))
    return 0 if mark is None else mark.position
