"""A consumer in a process of its own, which the test kills.

Standard input: what to do, one line of JSON. Standard output: a line for each message, before its
effect commits, or once it hangs: those whose note is in `hangs` are never ended.
"""

import asyncio
import sys
from typing import Any

import msgspec

from outbox.consumer.config import ConsumerConfig
from outbox.consumer.consumer import Consumer
from outbox.consumer.delivery import Delivery


class Plan(msgspec.Struct):
    """What to do."""

    config: ConsumerConfig
    hangs: list[str]


def tell(word: str, note: str) -> None:
    """Write one line for the test."""
    sys.stdout.write(f"{word} {note}\n")
    sys.stdout.flush()


async def main() -> None:
    """Work until killed."""
    plan = msgspec.json.decode(sys.stdin.readline(), type=Plan)

    async def work(delivery: Delivery, connection: Any) -> None:
        note = delivery.payload.decode()
        await connection.execute("INSERT INTO effect VALUES ($1, $2)", delivery.message_id, note)
        if note in plan.hangs:
            tell("hangs", note)
            await asyncio.Event().wait()
        tell("applies", note)  # its commit follows

    async with Consumer(plan.config) as consumer:
        await consumer.run(work)


asyncio.run(main())
