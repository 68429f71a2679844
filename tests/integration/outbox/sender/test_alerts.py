"""Alerts of a relay: each fires in a real Prometheus once its fault is made."""

import random
import time
from pathlib import Path
from uuid import UUID

import pytest

import outbox
from outbox import Message, Status
from outbox.message import smallest_id
from tests.prometheus import scraped

from ..conftest import CONSUMER, Sender

OLD_SECONDS = 1_200.0
UUID7 = 7 << 76 | 2 << 62


@pytest.fixture(autouse=True)
def counts_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """A relay reads what its metrics show again as soon as somebody asks."""
    for name in ("_READ_SECONDS", "_SILENCE_SECONDS", "CONSUMER_SILENT_SECONDS"):
        monkeypatch.setattr(f"outbox.sender.relay.{name}", 0.1)


async def test_messages_that_are_given_up_and_every_panel_of_a_relay(
    sender: Sender, tmp_path: Path
) -> None:
    await sender.set_up(tries_max=1)
    async with sender.relay() as relay, scraped(tmp_path, relay) as prometheus:
        async with prometheus.alarm("OrderchainMessagesAbnormal", destination="clearing"):
            (message_id,) = await sender.store(1)
            await sender.until_status(message_id, Status.CONFIRMED)
            await sender.let_time_pass()
            await relay.sweep()
            await relay.settle()
            assert relay.stats().abnormal == 1
        await prometheus.until_panels_show("orderchain_outbox_relay")
        await prometheus.until_panels_show("orderchain_outbox_deliveries")
        await prometheus.until_panels_show("orderchain_outbox_oldest")


async def test_message_that_its_consumer_does_not_confirm(sender: Sender, tmp_path: Path) -> None:
    await sender.set_up()
    random_bits = random.SystemRandom().getrandbits(62)
    old = UUID(int=smallest_id(time.time() - OLD_SECONDS).int | UUID7 | random_bits)
    business = await sender.connect()
    async with (
        sender.relay() as relay,
        scraped(tmp_path, relay) as prometheus,
        prometheus.alarm("OrderchainMessagesOld", destination="clearing"),
    ):
        async with business.transaction():
            await outbox.add_many(business, [Message(old, "clearing", b"x")])
        await outbox.wake(business)
        await sender.until_status(old, Status.CONFIRMED)


async def test_consumer_that_is_silent_is_named_by_an_alert_and_once_in_the_log(
    sender: Sender, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clearing = await sender.set_up()
    async with sender.relay() as relay, scraped(tmp_path, relay) as prometheus:
        labels = {"destination": "clearing", "consumer": CONSUMER}
        async with prometheus.alarm("OrderchainConsumerSilent", **labels):
            (message_id,) = await sender.store(1)
            await sender.until_status(message_id, Status.CONFIRMED)
            await sender.admin.execute(
                "UPDATE outbox_pending SET sent_at = now() - interval '6 minutes'"
            )
        await sender.confirm(clearing, message_id)

        async def is_over() -> bool:
            return not await prometheus.firing("OrderchainConsumerSilent")

        await sender.until(is_over)
    said = f"destination clearing: nothing was ever heard of consumer {CONSUMER}"
    assert caplog.text.count(said) == 1


async def test_outbox_that_refuses_messages(sender: Sender, tmp_path: Path) -> None:
    await sender.set_up()
    bounds = {"history_bytes_max": 1, "outbox_bytes_max": 2}  # its empty tables take more
    async with (
        sender.relay(upkeep_seconds=3600.0, **bounds) as relay,
        scraped(tmp_path, relay) as prometheus,
        prometheus.alarm("OrderchainOutboxFull", since="orderchain_outbox_relay_found_full_total"),
    ):
        await relay.keep()
