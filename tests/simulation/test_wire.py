"""Wires and links: what they lose, and what arrives all the same."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from chain_kernel.errors import ConnectError, RetryError, StoppedError
from chain_kernel.testing.memory_chain import LinkDial, LossyLink
from chain_kernel.testing.memory_log import MemoryTopic
from chain_kernel.testing.virtual_loop import Process, run_virtual, virtual_clock
from chain_kernel.testing.wire import Dial, Wire, WireBroken, WiredServer
from chain_kernel.testing.wired import WiredRecordSource


class Counter:
    """A server's state: how often it was asked."""

    def __init__(self) -> None:
        self.count = 0

    async def add(self) -> int:
        self.count += 1
        return self.count


def wire_with(server: WiredServer | None = None, **dial: float) -> Wire:
    return Wire(server or WiredServer("database"), Dial(**dial), Random(3))


def test_sound_wire_takes_time_and_brings_the_answer() -> None:
    async def main() -> None:
        began, counter = virtual_clock().time(), Counter()
        assert await wire_with().call(counter.add) == 1
        assert 0.0 < virtual_clock().time() - began <= 0.01

    run_virtual(main())


def test_error_of_the_server_comes_back() -> None:
    async def refuse() -> None:
        raise ZeroDivisionError

    async def main() -> None:
        with pytest.raises(ZeroDivisionError):
            await wire_with().call(refuse)

    run_virtual(main())


@pytest.mark.parametrize(
    ("fault", "may_be_done", "count"),
    [
        ("refused", False, 0),
        ("question_lost", True, 0),
        ("answer_lost", True, 1),
        ("late", True, 1),
    ],
)
def test_fault_is_reported_and_does_what_its_name_says(
    fault: str, may_be_done: bool, count: int
) -> None:
    async def main() -> None:
        counter = Counter()
        with pytest.raises(WireBroken) as caught:
            await wire_with(None, **{fault: 1.0}).call(counter.add)
        assert caught.value.may_be_done is may_be_done
        await asyncio.sleep(10.0)
        assert counter.count == count

    run_virtual(main())


def test_late_question_may_land_behind_its_being_given_up() -> None:
    async def main() -> None:
        slow = landed_later = 0
        wire = wire_with(late=1.0)
        for _ in range(100):
            counter = Counter()
            try:
                slow += await wire.call(counter.add)
            except WireBroken:
                landed_later += counter.count == 0
            await asyncio.sleep(10.0)
            assert counter.count == 1
        assert slow > 0, "still awaited"
        assert landed_later > 50

    run_virtual(main())


def test_server_that_is_away_or_crashes_obeys_nothing_that_was_under_way() -> None:
    async def main() -> None:
        server, counter = WiredServer("database"), Counter()
        wire = wire_with(server)
        asking = asyncio.ensure_future(wire.call(counter.add))
        await asyncio.sleep(0)
        server.crash()
        with pytest.raises(WireBroken) as broken:
            await asking
        with pytest.raises(WireBroken) as away:
            await wire.call(counter.add)
        server.is_away = False
        assert (broken.value.may_be_done, away.value.may_be_done, counter.count) == (True, False, 0)
        assert await wire.call(counter.add) == 1

    run_virtual(main())


def test_question_of_a_process_that_is_paused_or_killed_is_obeyed_all_the_same() -> None:
    async def main() -> None:
        for end in (Process.pause, Process.kill):
            counter, process = Counter(), Process("p")
            task = process.run(wire_with().call(counter.add))
            await asyncio.sleep(0)
            end(process)
            await asyncio.sleep(1.0)
            assert counter.count == 1
            assert task.done() is process.is_dead
            process.kill()
            await asyncio.wait([task])

    run_virtual(main())


def test_dead_process_gets_no_answer() -> None:
    async def main() -> None:
        process, counter = Process("p"), Counter()
        task = process.run(ask_later(counter))
        await asyncio.sleep(0)
        process.is_dead = True
        with pytest.raises(StoppedError):
            await task
        assert counter.count == 0

    async def ask_later(counter: Counter) -> None:
        await asyncio.sleep(1.0)
        await wire_with().call(counter.add)

    run_virtual(main())


RECORDS = [b"%d" % number for number in range(1_000)]


def test_sound_link_passes_everything_as_it_comes() -> None:
    assert LossyLink(LinkDial(), Random(1))(RECORDS) == RECORDS


def test_lossy_link_loses_repeats_reorders_and_breaks() -> None:
    link = LossyLink(LinkDial(lost=0.1, repeated=0.1, held=0.1, broken=0.05), Random(1))
    passed = [record for at in range(0, 1_000, 10) for record in link(RECORDS[at : at + 10])]
    whole = [record for record in passed if record in RECORDS]
    assert len(set(RECORDS) - set(whole)) > 50, "lost"
    assert len(whole) > len(set(whole)), "repeated"
    assert len(whole) < len(passed), "broken"
    numbers = [int(record) for record in whole if record]
    assert numbers != sorted(numbers), "reordered"


def test_healed_link_lets_go_of_what_it_held() -> None:
    dial = LinkDial(held=1.0)
    link = LossyLink(dial, Random(1))
    passed = link([b"a", b"b", b"c"])
    dial.heal()
    for _ in range(20):
        passed += link([])
    assert sorted(record for record in passed if record) == [b"a", b"b", b"c"]


# -- a topic of orders at the end of a wire --------------------------------------------------------


async def values(source: WiredRecordSource) -> list[bytes | None]:
    found = await source.records(10, 0.1)
    return [record.value for records, _ in found.values() for record in records]


def test_topic_at_the_end_of_a_wire_gives_its_records_in_order_and_then_waits() -> None:
    async def main() -> None:
        topic = MemoryTopic(1)
        source = WiredRecordSource(topic, wire_with())
        topic.add(0, None, b"a")
        assert await source.open() == {0: (0, 1)}
        await source.seek({0: 0})
        assert await values(source) == [b"a"]
        assert await values(source) == []
        virtual_clock().call_later(0.05, topic.add, 0, None, b"b")
        assert await values(source) == [b"b"]

    run_virtual(main())


def test_question_that_reaches_the_topic_too_late_moves_no_place() -> None:
    """Else records would be passed by that nobody was given."""

    async def main() -> None:
        topic, wire = MemoryTopic(1), wire_with(late=1.0)
        source = WiredRecordSource(topic, wire)
        for value in (b"a", b"b"):
            topic.add(0, None, value)
        await source.seek({0: 0})
        with pytest.raises(RetryError):
            await source.records(1, 0.1)
        await asyncio.sleep(10.0)
        wire.dial.heal()
        assert await values(source) == [b"a", b"b"]

    run_virtual(main())


def test_topic_whose_broker_is_away_is_reported_by_open_and_by_records() -> None:
    async def main() -> None:
        topic, server = MemoryTopic(1), WiredServer("broker")
        source = WiredRecordSource(topic, wire_with(server))
        await source.seek({0: 0})
        for fault in (topic, server):
            fault.is_away = True
            with pytest.raises(ConnectError):
                await source.open()
            with pytest.raises(RetryError):
                await source.records(1, 0.1)
            fault.is_away = False
        assert await values(source) == []

    run_virtual(main())
