"""The ASGI example: two applications of one chain, of which one leads at a time."""

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from chainctl.commands.leader import change_leader
from chainctl.options import ActByHand
from chainctl.settings import Settings
from tests.deadlines import deadline

CHAIN = 7
ORDER = {"key": "anna/1", "symbol": "ALPHA", "side": "B", "qty": 100}

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]


@pytest.fixture
def module(
    orderchain_environment: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    load: Callable[[str], Any],
) -> Any:
    for name, value in orderchain_environment.items():
        monkeypatch.setenv(name, value)
    return load("order_gateway")


@asynccontextmanager
async def served(module: Any) -> AsyncIterator[httpx.AsyncClient]:
    """An application as a server runs it: its lifespan, and requests beside."""
    app = module.make_app(CHAIN)
    transport = httpx.ASGITransport(app=app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://gateway") as client,
    ):
        yield client


async def until_leading(client: httpx.AsyncClient) -> None:
    async with deadline():
        while (await client.get("/ready")).status_code != 200:  # noqa: ASYNC110 - as a balancer asks
            await asyncio.sleep(0.02)


@pytest.mark.orderchain(chains=[CHAIN])
async def test_standby_answers_503_and_a_process_that_leads_no_more_ends_itself(
    module: Any, orderchain_environment: dict[str, str]
) -> None:
    ended, loop = asyncio.Event(), asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, ended.set)  # as a server of ASGI has one
    try:
        async with served(module) as first:
            await until_leading(first)
            placed = await first.post("/orders", json=ORDER)
            assert placed.json() == {"key": "anna/1", "id": 1, "pid": 0}
            async with served(module) as second:
                for asked in (second.get("/ready"), second.post("/orders", json=ORDER)):
                    waiting = await asked
                    assert (waiting.status_code, waiting.headers["Retry-After"]) == (503, "1")
                for body, status in (
                    (b"{}", 400),
                    (b'{"key": 1}', 400),
                    (b'{"key": "anna/1"}', 409),  # another payload
                    (b'{"key": "bert#5"}', 200),
                    (b'{"key": "bert#4"}', 409),  # a number below the highest
                    (b"x" * 2**19, 413),
                ):
                    refused = await first.post("/orders", content=body)
                    assert refused.status_code == status, refused.text
                owner = Settings(database=orderchain_environment["CHAINCTL_DATABASE"])
                act = ActByHand("test", "a drill", is_dry_run=False)
                await change_leader(owner, CHAIN, "step-down", act)
                await until_leading(second)
                async with deadline():
                    await ended.wait()
                assert (await first.post("/orders", json=ORDER)).status_code == 503
                again = await second.post("/orders", json=ORDER)
                assert again.json() == placed.json()
                ended.clear()
        assert not ended.is_set()  # a server that has ended by itself needs no signal
    finally:
        loop.remove_signal_handler(signal.SIGTERM)
