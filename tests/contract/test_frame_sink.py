"""What every FrameSink must do, shown on those in memory and on the real Kafka alike."""

import secrets
from collections.abc import AsyncIterator

import pytest

from chain_kernel.errors import RetryError, TopicError
from chain_kernel.ports import FrameSink
from chain_kernel.testing.memory_log import MemoryFrameSink, MemoryLog
from local_stack import KafkaServer
from sequencer.config import SequencerConfig
from sequencer.stores.kafka import KafkaFrameSink
from sequencer.stores.shared_producer import SharedProducer
from tests.builders.topics import make_topics
from tests.deadlines import deadline, in_time
from tests.doubles.wired import WiredFrameSink
from tests.opened import administering

from .conftest import sound_wire


class MemoryPlace:
    """A log in memory, at the end of a wire or not."""

    def __init__(self, *, is_wired: bool) -> None:
        self.log = MemoryLog()
        self.name = "memory"
        self.sink: FrameSink = MemoryFrameSink(self.log)
        if is_wired:
            self.sink = WiredFrameSink(self.log, sound_wire())

    async def make(self) -> None:
        self.log.is_gone = False

    async def delete(self) -> None:
        self.log.delete()


class KafkaPlace:
    """A topic of the real broker."""

    def __init__(self, kafka: KafkaServer, *, is_shared: bool) -> None:
        self.name = f"contract-{secrets.token_hex(4)}"
        self._kafka = kafka.bootstrap
        config = SequencerConfig(chain_id=1, database="postgresql://none", kafka=kafka.bootstrap)
        self.shared = SharedProducer(config, 1) if is_shared else None
        self.sink: FrameSink = KafkaFrameSink(config, shared=self.shared)

    async def make(self) -> None:
        await make_topics(self._kafka, self.name)

    async def delete(self) -> None:
        async with administering(self._kafka) as admin:
            await admin.delete_topics([self.name])


@pytest.fixture(params=["memory", "wired", "kafka", "kafka, shared"])
async def place(request: pytest.FixtureRequest) -> AsyncIterator[MemoryPlace | KafkaPlace]:
    """A topic that is there."""
    place: MemoryPlace | KafkaPlace
    if request.param.startswith("kafka"):
        server = request.getfixturevalue("kafka_server")
        place = KafkaPlace(server, is_shared=request.param.endswith("shared"))
    else:
        place = MemoryPlace(is_wired=request.param == "wired")
    await place.make()
    yield place
    await place.sink.close()
    if isinstance(place, KafkaPlace) and place.shared is not None:
        await place.shared.close()


async def until_sent(sink: FrameSink, frames: list[bytes]) -> None:
    """Send until the broker takes them: it learns of a topic that was just made a moment later."""
    async with deadline():
        while True:
            try:
                return await sink.send(frames)
            except RetryError:
                pass


async def until_refused(sink: FrameSink) -> None:
    """Send until it is refused: a broker may still take what comes in the moment of its end."""
    async with deadline():
        while True:
            await sink.send([b"lost"])


async def test_what_was_sent_is_what_the_topic_ends_with(place: MemoryPlace | KafkaPlace) -> None:
    await place.sink.start(place.name, 0)
    await place.sink.send([b"one", b"two", b"three"])
    assert await place.sink.last_records(place.name, 0, 2) == [b"two", b"three"]


async def test_topic_that_goes_away_fails_the_send(place: MemoryPlace | KafkaPlace) -> None:
    sink = place.sink
    await sink.start(place.name, 0)
    await sink.send([b"before"])
    await place.delete()
    with pytest.raises(RetryError):
        await until_refused(sink)
    with pytest.raises(RetryError):
        await in_time(sink.last_records(place.name, 0, 1))
    await sink.close()
    with pytest.raises(TopicError):
        await sink.start(place.name, 0)
    await place.make()
    await until_sent(sink, [b"after"])
    assert (await sink.last_records(place.name, 0, 4))[-1] == b"after"
