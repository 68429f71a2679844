"""A trace is carried by a message, from where it is added to its handler."""

import asyncio
from typing import Any
from uuid import UUID

import msgspec
import pytest
from opentelemetry import trace
from starlette.types import Receive, Scope, Send

from chain_kernel.clock import SystemClock
from chainctl.schema.parts import PARTS
from local_stack.postgres import SUPERUSER
from outbox import Consumer, ConsumerConfig, Delivery, Message, RetryLevels
from outbox.message import draw_message_ids
from outbox.service.app import MessageApp
from outbox.service.config import Clients
from outbox.service.interface import MessageClient
from outbox.service.message_api import MessageApi
from outbox.statuses import Status
from tests.builders.spans import id_of, parent_of, recorded_spans, trace_of
from tests.deadlines import deadline

from .conftest import CONSUMER, Sender
from .service.service_client import TOKEN, client, endpoint, raw, service_config

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
    assert len(headers) == 2  # in any order: they were sent side by side
    shown = {("traceparent" in each, each.get("own")) for each in headers}
    assert shown == {(True, b"1"), (False, None)}


async def test_message_of_the_service_is_in_its_callers_trace_and_a_repeat_is_the_same(
    sender: Sender,
) -> None:
    """Each try of a caller, and each request at the service, may have a span of its own."""
    await sender.set_up()
    desk = MessageApi(service_config(sender), SystemClock())
    app = MessageApp(service_config(sender), Clients([client("payments")]), desk)
    traced, plain = (Message(each, "clearing", b"x") for each in draw_message_ids(2))
    one = {"message_id": str(plain.message_id), "destination": "clearing", "payload": "eA=="}
    body = msgspec.json.encode({"messages": [one]})
    with recorded_spans() as spans:
        tracer = trace.get_tracer("a service")

        async def asgi(scope: Scope, receive: Receive, send: Send) -> None:
            with tracer.start_as_current_span("request"):
                await app.asgi(scope, receive, send)

        async with endpoint(asgi) as url:
            for _ in range(2):
                with tracer.start_as_current_span("business"):
                    await MessageClient([url], TOKEN).send([traced])
                status, _, shown = await raw(url, "POST", "/v1/messages/send", body)
                assert status == 200, shown
        await desk.close()
    rows = await sender.admin.fetch(
        "SELECT message_id, headers ->> 'traceparent' FROM outbox_message"
    )
    first = {"business": spans.named("business")[0], "request": spans.named("request")[1]}
    parents = {message_id: int(carried.split("-")[2], 16) for message_id, carried in rows}
    assert parents == {
        traced.message_id: id_of(first["business"]), plain.message_id: id_of(first["request"])
    }  # fmt: skip
