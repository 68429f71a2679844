"""A trace is carried by a message, from where it is added to its handler."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry import trace

from chainctl.schema.parts import PARTS
from local_stack.postgres import SUPERUSER
from outbox import Consumer, ConsumerConfig, Delivery, RetryLevels
from outbox.statuses import Status
from tests.builders.spans import id_of, parent_of, recorded_spans, trace_of
from tests.deadlines import deadline

from .conftest import CONSUMER

if TYPE_CHECKING:
    from uuid import UUID

    from .conftest import Sender

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]


async def consumer_of(sender: Sender, topic: str) -> Consumer:
    async with sender.admin.transaction():
        await sender.admin.execute(PARTS["inbox"].text())
    return Consumer(
        ConsumerConfig(
            name=CONSUMER,
            topics=(topic,),
            kafka=sender.kafka,
            database=sender.dsns[SUPERUSER],
            retries=RetryLevels(levels_seconds=(0.1,)),
            retry_poll_seconds=0.1,
        )
    )


async def test_handler_works_in_the_trace_of_the_business_that_added_the_message(
    sender: Sender,
) -> None:
    destination = await sender.set_up()
    consumer = await consumer_of(sender, destination.topic)
    business = await sender.connect()
    tracer = trace.get_tracer("a service")
    failed: set[UUID] = set()

    async def handle(delivery: Delivery, _: Any) -> None:
        with tracer.start_as_current_span("handler"):
            if "own" in delivery.headers and not failed:
                failed.add(delivery.message_id)
                raise RuntimeError("parked, and tried again later")

    with recorded_spans() as spans:
        tracer = trace.get_tracer("a service")
        async with sender.relay() as relay, consumer:
            work = asyncio.create_task(consumer.run(handle))
            with tracer.start_as_current_span("business"):
                async with relay.transaction(business) as transaction:
                    traced = await transaction.add("clearing", b"trade", headers={"own": "1"})
            async with relay.transaction(business) as transaction:
                plain = await transaction.add("clearing", b"trade")
            await sender.until_status(traced, Status.CONSUMED)
            await sender.until_status(plain, Status.CONSUMED)
            consumer.stop()
            async with deadline():
                await work
    business_span = spans.only("business")
    first, again, *others = (one for one in spans.named("handler") if parent_of(one))
    assert parent_of(first) == parent_of(again) == id_of(business_span)
    assert trace_of(first) == trace_of(again) == trace_of(business_span)
    assert others == []
    assert len(spans.named("handler")) == 3
    headers = [dict(record.headers) for record in await sender.records(destination.topic)]
    assert [("traceparent" in each, each.get("own")) for each in headers] == [
        (True, b"1"), (False, None)
    ]  # fmt: skip
