"""Wires and links: what they lose, and what arrives all the same."""

import asyncio
from random import Random

import pytest

from chain_kernel.errors import RetryError
from chain_kernel.testing.memory_chain import LinkDial, LossyLink
from chain_kernel.testing.memory_store import MemoryDatabase
from tests.doubles.hosts import Host, Hosts
from tests.doubles.memory_topic import MemoryTopic
from tests.doubles.wire import Dial, Wire, WireBroken, WiredServer
from tests.doubles.wired import WiredChainStore, WiredRecordSource
from tests.virtual import virtual


class Counter:
    """A server's state: how often it was asked."""

    def __init__(self) -> None:
        self.count = 0

    async def add(self) -> int:
        self.count += 1
        return self.count


def wire_with(server: WiredServer | None = None, **dial: float) -> Wire:
    return Wire(server or WiredServer("database"), Dial(**dial), Random(3))


@pytest.mark.parametrize(
    ("fault", "may_be_done", "count"),
    [
        ("refused", False, 0),
        ("question_lost", True, 0),
        ("answer_lost", True, 1),
        ("late", True, 1),
    ],
)
@virtual
async def test_fault_does_what_its_name_says(fault: str, may_be_done: bool, count: int) -> None:
    counter = Counter()
    with pytest.raises(WireBroken) as caught:
        await wire_with(None, **{fault: 1.0}).call(counter.add)
    assert caught.value.may_be_done is may_be_done
    await asyncio.sleep(10.0)
    assert counter.count == count


@virtual
async def test_server_that_is_away_or_crashes_obeys_nothing_that_was_under_way() -> None:
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


RECORDS = [b"%d" % number for number in range(1_000)]


@virtual
async def test_connection_that_was_given_up_brings_no_answer() -> None:
    """It is as with a closed one: the next term may have begun, and its fence refuses this."""
    database = MemoryDatabase()
    database.create(1)
    wire = wire_with()
    store = WiredChainStore(Hosts(Host(database, wire.server), Random(4)), 1, wire)
    term = await store.take_over("a", await store.look())
    skip = asyncio.create_task(store.skip_published(0, 0))
    await asyncio.sleep(0)
    assert (await store.take_over_again("a", term)).epoch == term.epoch + 1
    with pytest.raises(RetryError):
        await skip


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


async def values(source: WiredRecordSource) -> list[bytes | None]:
    found = await source.records(10, 0.1)
    return [record.value for records, _ in found.values() for record in records]


@virtual
async def test_question_that_reaches_the_topic_too_late_moves_no_place() -> None:
    """Else records would be passed by that were never handed out."""
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
