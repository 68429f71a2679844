"""Metrics and health of the parts, as Prometheus and an orchestrator see them."""

import asyncio
import re
from collections.abc import Iterable
from typing import Any

import pytest

from chain_kernel.errors import ForkFound, RetryError, StoppedError
from chain_kernel.monitoring import Monitor, Sample
from chain_kernel.testing.memory_store import MemoryLease
from chain_kernel.testing.virtual_loop import run_virtual, virtual_clock
from matcher_receiver.stats import METRICS as RECEIVER
from sequencer.stats import METRICS as SEQUENCER
from sequencer.stats import Timing
from tests.builders.orders import make_orders
from tests.unit.matcher_receiver.rig import Rig, take
from tests.unit.sequencer.builders import World
from tests.virtual import virtual


class Part:
    """A part that somebody else has written."""

    def __init__(self, *samples: Sample, reason: str | None = None) -> None:
        self.given = samples
        self.reason = reason

    def samples(self) -> Iterable[Sample]:
        return self.given

    def why_not_ready(self) -> str | None:
        return self.reason


async def ask(
    app: Monitor, path: str, method: str = "GET", root_path: str = ""
) -> tuple[int, dict[bytes, bytes], str]:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        raise AssertionError("a GET has no body")

    scope = {
        "type": "http", "method": method, "path": root_path + path, "root_path": root_path,
        "headers": [],
    }  # fmt: skip
    await app(scope, receive, send)
    start, body = sent
    return start["status"], dict(start["headers"]), body["body"].decode()


async def metrics(*parts: Any) -> list[str]:
    status, headers, text = await ask(Monitor(*parts), "/metrics")
    assert status == 200
    assert headers[b"content-type"].startswith(b"text/plain")
    assert headers[b"content-length"] == str(len(text.encode())).encode()
    return text.splitlines()


async def test_samples_of_one_name_from_two_parts_are_one_metric() -> None:
    given = [Sample("x_total", "counter", n, "X's.", {"chain": str(n)}) for n in (1, 2)]
    lines = await metrics(Part(given[0]), Part(given[1]))
    assert lines[:4] == [
        "# HELP x_total X's.",
        "# TYPE x_total counter",
        'x_total{chain="1"} 1.0',
        'x_total{chain="2"} 2.0',
    ]


async def test_histogram_has_cumulated_buckets_a_count_and_a_sum() -> None:
    timing = Timing()
    for seconds in (0.003, 0.03, 60.0):
        timing.add(seconds)
    latency = timing.latency
    assert (latency.count, latency.last_seconds, latency.highest_seconds) == (3, 60.0, 60.0)
    assert latency.recent_seconds == pytest.approx(0.9 * (0.003 + 0.1 * 0.027) + 6.0)
    lines = await metrics(Part(Sample("x_seconds", "histogram", latency.histogram, "X.", {})))
    assert 'x_seconds_bucket{le="0.0025"} 0.0' in lines
    assert 'x_seconds_bucket{le="0.005"} 1.0' in lines
    assert 'x_seconds_bucket{le="10.0"} 2.0' in lines
    assert 'x_seconds_bucket{le="+Inf"} 3.0' in lines
    assert "x_seconds_count 3.0" in lines
    assert "x_seconds_sum 60.033" in lines


async def test_process_with_a_part_that_is_not_ready_lives_and_is_not_ready() -> None:
    app = Monitor(Part(), Part(reason="no broker"), Part(reason="halted"))
    assert (await ask(app, "/livez"))[0] == 200
    status, _, text = await ask(app, "/readyz")
    assert (status, text) == (503, "no broker; halted\n")
    assert "orderchain_ready 0.0" in app.metrics().body.decode().splitlines()


async def test_process_is_ready_when_all_parts_are_and_not_before_there_is_one() -> None:
    app = Monitor()
    assert (await ask(app, "/readyz"))[0] == 503
    app.add(Part())
    assert (await ask(app, "/readyz"))[0] == 200
    assert "orderchain_ready 1.0" in app.metrics().body.decode().splitlines()


async def test_monitor_that_is_mounted_answers_below_its_path_and_nothing_else() -> None:
    app = Monitor(Part())
    assert (await ask(app, "/livez", root_path="/orders"))[0] == 200
    assert (await ask(app, "/metrics/x"))[0] == 404
    status, headers, _ = await ask(app, "/metrics", method="POST")
    assert (status, headers[b"allow"]) == (405, b"GET, HEAD")
    status, headers, text = await ask(app, "/livez", method="HEAD")
    assert (status, text, headers[b"content-length"]) == (200, "", b"3")


def test_sequencer_is_ready_while_it_leads_and_publishes_and_exports_every_metric() -> None:
    async def lead(world: World) -> None:
        sequencer = world.sequencer(virtual_clock(), heartbeat_seconds=3600)
        assert sequencer.why_not_ready() == "chain 1: not leading"
        async with sequencer:
            acks = await sequencer.submit_many(make_orders(5))
            assert sequencer.why_not_ready() is None
            await asyncio.sleep(1)
            values = {sample.name: sample.value for sample in sequencer.samples()}
            assert set(values) == {metric.name for metric in SEQUENCER}
            assert values["orderchain_sequencer_head_persisted"] == acks[-1].id
            assert values["orderchain_sequencer_head_published"] == acks[-1].id
            assert values["orderchain_sequencer_unpublished_seconds"] == 0.0
            assert values["orderchain_sequencer_orders_total"] == 5
            lines = await metrics(sequencer)
            assert 'orderchain_sequencer_commit_seconds_count{chain="1",name="' in "\n".join(lines)
        assert sequencer.why_not_ready() == "chain 1: not leading"

    run_virtual(lead(World()), seed=1)


def test_sequencer_whose_broker_is_away_is_not_ready_once_orders_have_waited_too_long() -> None:
    async def lead(world: World) -> None:
        async with world.sequencer(virtual_clock(), stop_seconds=1) as sequencer:
            world.log.is_away = True
            await sequencer.submit("k", b"x")
            await asyncio.sleep(59)
            assert sequencer.why_not_ready() is None
            await asyncio.sleep(2)
            status, _, text = await ask(Monitor(sequencer), "/readyz")
            late = (
                r"chain 1: published 6\d s late: \d+ ids wait for the broker: the broker is away\n"
            )
            assert (status, bool(re.fullmatch(late, text))) == (503, True), text
            world.log.is_away = False
            await asyncio.sleep(6)
            assert sequencer.why_not_ready() is None
            assert sequencer.stats().unpublished_seconds == 0.0

    run_virtual(lead(World()), seed=1)


def test_sequencer_without_broker_is_ready_while_notifications_fail_since_receivers_poll(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def refuse(*_: object) -> None:
        raise RetryError("too many notifications")

    async def lead(world: World) -> None:
        async with world.sequencer(virtual_clock(), has_broker=False) as sequencer:
            monkeypatch.setattr(MemoryLease, "notify", refuse)
            await sequencer.submit("k", b"x")
            await asyncio.sleep(90)
            assert sequencer.why_not_ready() is None
            values = {sample.name: sample.value for sample in sequencer.samples()}
            assert values["orderchain_sequencer_broker_away_seconds"] > 60
            assert values["orderchain_sequencer_send_failures_total"] > 1

    run_virtual(lead(World()), seed=1)


@virtual
async def test_receiver_that_halted_is_not_ready_and_exports_it() -> None:
    rig = Rig([4, 6])
    async with rig.live() as receiver:
        core = receiver._core
        assert core is not None
        chain = f"chain {rig.chain.chain_id}"
        core.halt(ForkFound(rig.chain.chain_id, 2, 3, 4))
        reason = str(receiver.why_not_ready())
        assert "halted: fork after 2" in reason
        assert reason.count(chain) == 1
        values = {sample.name: sample.value for sample in receiver.samples()}
        assert values["orderchain_receiver_halted"] == 1


@virtual
async def test_receiver_is_ready_once_it_has_caught_up_and_exports_every_metric() -> None:
    rig = Rig([4, 6])
    receiver = rig.receiver()
    assert list(receiver.samples()) == []
    assert "not started" in str(receiver.why_not_ready())
    async with receiver:
        assert "catching up, at 0 of" in str(receiver.why_not_ready())
        await take(receiver, rig.chain.mark().id)
        assert receiver.why_not_ready() is None
        values = {sample.name: sample.value for sample in receiver.samples()}
        # Those of a shadow are another one's.
        assert set(values) == {each.name for each in RECEIVER if "_shadow_" not in each.name}
        assert values["orderchain_receiver_head_delivered"] == rig.chain.mark().id
        assert values["orderchain_receiver_lag_ids"] == 0
        receiver.stop()
        with pytest.raises((StoppedError, StopAsyncIteration)):
            await anext(receiver)
        assert "ended after id" in str(receiver.why_not_ready())
