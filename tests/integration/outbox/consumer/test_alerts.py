"""The alert of a consumer fires in a real Prometheus once its fault is made."""

import asyncio
from pathlib import Path
from typing import Any

from outbox.consumer.decisions import RetryLevels
from outbox.consumer.delivery import Delivery
from tests.prometheus import scraped

from .rig import Rig


async def refuse(delivery: Delivery, connection: Any) -> None:
    raise ValueError(f"cannot take {delivery.payload!r}")


async def test_message_that_its_handler_cannot_take(rig: Rig, tmp_path: Path) -> None:
    async with rig.consumer(retries=RetryLevels(tries_max=0)) as consumer:
        running = asyncio.create_task(consumer.run(refuse))
        async with scraped(tmp_path, consumer) as prometheus:
            none_yet = "orderchain_outbox_consumer_dead_total == 0"
            async with prometheus.alarm(
                "OrderchainDeadLetters", since=none_yet, consumer=rig.consumer_name
            ):
                await rig.send(rig.message("poison"))
            await prometheus.until_panels_show("orderchain_outbox_consumer")
        consumer.stop()
        await running
