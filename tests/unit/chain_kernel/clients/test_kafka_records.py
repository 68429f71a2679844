"""One answer of a broker: what is said of a batch whose head is damaged."""

import struct

import pytest
from aiokafka import TopicPartition
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from chain_kernel.clients.kafka_records import _Batches, _PartitionRecords


def batch_from(offset: int, count: int = 2) -> bytes:
    builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 10_000)
    for number in range(count):
        builder.append(number, 0, None, b"an order", [])
    return struct.pack(">q", offset) + bytes(builder.build())[8:]


def with_length(batch: bytes, length: int) -> bytes:
    return batch[:8] + struct.pack(">i", length) + batch[12:]


def read(answer: bytes) -> _PartitionRecords:
    """Read all of `answer`, which begins at offset 0."""
    at, batches = TopicPartition("orders", 0), _Batches(answer)
    records = _PartitionRecords(at, batches, [], 0, None, None, True, "read_uncommitted")
    taken = [record.offset for record in records]
    assert taken == list(range(len(taken)))
    return records


@pytest.mark.parametrize("length", [-(2**31), -1_000, -12, -5, -1, 0, 7, 48, 60])
@pytest.mark.parametrize("before", [0, 2, 4])
def test_batch_of_damaged_length_is_named(length: int, before: int) -> None:
    whole = [batch_from(offset) for offset in (0, 2, 4, 6)]
    number = before // 2
    damaged = with_length(whole[number], length)
    found = read(b"".join([*whole[:number], damaged, *whole[number + 1 :]])).unreadable
    assert found is not None
    # Where the next batch begins is not known: the rest of this one may be named after it.
    assert before < found.next_offset <= before + 2
    assert (found.offset, found.is_damaged) == (before, True)


def test_next_batch_says_where_a_damaged_one_ends() -> None:
    damaged = bytearray(batch_from(0))
    damaged[30] ^= 0x7F
    found = read(bytes(damaged) + batch_from(5)).unreadable
    assert found is not None
    assert (found.offset, found.next_offset) == (0, 5)


@pytest.mark.parametrize("size", [1, 7, 11])
def test_answer_without_a_whole_head_is_named_at_the_place_asked_for(size: int) -> None:
    found = read(batch_from(0)[:size]).unreadable
    assert found is not None
    assert (found.offset, found.next_offset, found.is_damaged) == (0, 1, True)
