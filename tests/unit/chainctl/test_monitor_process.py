"""What the process of the pages shows of samples, and how old it says that they are."""

import asyncio
import threading
import time
from typing import Any

import msgspec
import pytest

from chain_kernel.monitoring import READY, MonitorAnswer, metrics_of
from chainctl import monitor_process
from chainctl.monitor_process import Look, Pages


def look(at: float, *, is_ready: bool) -> Look[msgspec.Raw]:
    samples = msgspec.msgpack.encode(list(READY.samples(is_ready, {})))
    return Look(at, None, None, msgspec.Raw(samples))


async def metrics_shown(pages: Pages) -> str:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": "/metrics", "headers": []}
    await pages(scope, None, send)  # type: ignore[arg-type]
    return b"".join(message.get("body", b"") for message in sent).decode()


async def test_samples_that_are_replaced_while_they_are_rendered_show_their_own_age(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else old metrics are shown as fresh ones, to all who ask."""
    begun, let_go = threading.Event(), threading.Event()

    def slowly(samples: Any) -> MonitorAnswer:
        begun.set()
        assert let_go.wait(60.0)
        return metrics_of(samples)

    monkeypatch.setattr(monitor_process, "metrics_of", slowly)
    pages = Pages(look(time.monotonic() - 4.0, is_ready=False))
    asked = asyncio.create_task(metrics_shown(pages))
    assert await asyncio.to_thread(begun.wait, 60.0)
    pages.take(look(time.monotonic(), is_ready=True))
    let_go.set()
    assert "orderchain_metrics_age_seconds 4" in await asked
    later = await metrics_shown(pages)
    assert "orderchain_metrics_age_seconds 0" in later
    assert "orderchain_ready 1" in later
