"""Makes and reads topics on a real broker."""

import struct
from collections.abc import Callable, Mapping

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRecord
from aiokafka.admin import NewTopic
from aiokafka.record.default_records import _DefaultRecordBatchBuilderPy
from aiokafka.record.util import calc_crc32c

from local_stack import KafkaServer
from tests.opened import administering

_FETCH_BYTES = 16 * 2**20
"""Many of the largest frames at once."""

_KEPT = {"retention.ms": "-1"}

_BATCH_HEAD_BYTES = 61
"""What comes before the first record of a batch."""

_CHECKSUM_AT = 17
_CHECKED_FROM = 21
_LAST_AT = 23
"""Where a batch has its checksum, what it is made over, and in that how many offsets follow its
first one."""


async def make_topics(
    kafka: str,
    *names: str,
    partitions: int = 1,
    copies: int = 1,
    configs: Mapping[str, str] | None = None,
) -> None:
    """Make topics on the broker at `kafka`; `configs` are their settings by Kafka's names.

    They keep records of any age: by default a broker takes away those of a week ago every five
    minutes, so that a test with times of its own would find its records, or not.
    """
    async with administering(kafka) as admin:
        await admin.create_topics(
            [
                NewTopic(name, partitions, copies, topic_configs=_KEPT | dict(configs or {}))
                for name in names
            ]
        )


async def send_records(
    kafka: object, topic: str, *values: bytes | None, key: bytes | None = None
) -> None:
    """Send `values` to partition 0 one after the other, so that each gets the next offset."""
    async with AIOKafkaProducer(bootstrap_servers=kafka, max_request_size=_FETCH_BYTES) as producer:
        for value in values:
            await producer.send_and_wait(topic, value, key=key, partition=0)


async def read_topic(kafka: object, topic: str) -> list[ConsumerRecord]:
    """Return every record that `topic` holds now."""
    async with AIOKafkaConsumer(
        topic,
        bootstrap_servers=kafka,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        check_crcs=True,
        max_partition_fetch_bytes=_FETCH_BYTES,
    ) as consumer:
        partitions = list(consumer.assignment())  # without a group: all of them
        assert partitions, topic
        ends = await consumer.end_offsets(partitions)
        found: list[ConsumerRecord] = []
        for partition in partitions:
            while await consumer.position(partition) < ends[partition]:
                for records in (await consumer.getmany(timeout_ms=500)).values():
                    found += records
        return found


async def records_of(kafka: object, topic: str) -> list[bytes]:
    """Return the value of every record of `topic`."""
    return [record.value for record in await read_topic(kafka, topic)]


class StrangeName(str):
    """The name of a header as clients in C or Go can send it."""

    __slots__ = ()

    def encode(self, *_: object) -> bytes:
        return b"\xff\xfe"


def let_names_be_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have producers ask a StrangeName for its bytes: the compiled encoder does not."""
    for module in ("producer", "message_accumulator"):
        encoder = f"aiokafka.producer.{module}.DefaultRecordBatchBuilder"
        monkeypatch.setattr(encoder, _DefaultRecordBatchBuilderPy)


def damage_batch(kafka: KafkaServer, topic: str, number: int, *, is_sealed: bool = False) -> None:
    """Change one byte of a batch of partition 0 on the broker's disk, as a failing disk does.

    It is the length of its first record: no reader can decode that, with or without checksums.
    `is_sealed`: the checksum is right again, as of a sender that has written it like that.
    """

    def change(batch: bytearray) -> None:
        batch[_BATCH_HEAD_BYTES] ^= 0x7F
        if is_sealed:
            struct.pack_into(">I", batch, _CHECKSUM_AT, calc_crc32c(bytes(batch[_CHECKED_FROM:])))

    change_batch(kafka, topic, number, change)


def damage_head(kafka: KafkaServer, topic: str, number: int) -> None:
    """Have the head of a batch of partition 0 say that it ends far after the topic does."""
    change_batch(
        kafka, topic, number, lambda batch: struct.pack_into(">i", batch, _LAST_AT, 1_000_000)
    )


def change_batch(
    kafka: KafkaServer, topic: str, number: int, change: Callable[[bytearray], None]
) -> None:
    """Change a batch of partition 0 on the broker's disk; its length stays."""
    (segment,) = (kafka.data_directory / f"{topic}-0").glob("*.log")
    with segment.open("r+b") as log:
        for _ in range(number + 1):
            at = log.tell()
            _, length = struct.unpack(">qi", log.read(12))
            log.seek(length, 1)
        log.seek(at)
        batch = bytearray(log.read(12 + length))
        change(batch)
        log.seek(at)
        log.write(batch)
