"""Which errors of Kafka's client may pass by themselves, and what is said of each."""

import zlib
from gzip import BadGzipFile

import pytest
from aiokafka import errors
from cramjam import DecompressionError

from chain_kernel.clients.kafka import TopicPartition, UnreadableRecord
from chain_kernel.clients.kafka_config import KafkaConfig
from chain_kernel.clients.kafka_errors import broker_refusal, reading_error
from chain_kernel.errors import ConnectError, RetryError, TopicError
from outbox.parts import endless

KAFKA = KafkaConfig.of("kafka:9092")
ORDERS = TopicPartition("orders", 0)


def no_codec(name: str = "snappy") -> errors.UnsupportedCodecError:
    return errors.UnsupportedCodecError(f"Libraries for {name} compression codec not found")


def unreadable(error: Exception, *, is_damaged: bool = False) -> UnreadableRecord:
    return UnreadableRecord(ORDERS, 7, 9, error, is_damaged)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            unreadable(no_codec("zstd")),
            "of the record of topic orders, partition 0, offset 7 to 8, was 'zstd', expected one ",
        ),
        (
            unreadable(errors.CorruptRecordException("crc"), is_damaged=True),
            "offset 7 to 8 was 'damaged since it was sent: its checksum is wrong', expected one",
        ),
        (
            unreadable(DecompressionError("bad\nblock")),
            "offset 7 to 8 was 'sent like that: bad block', expected one that can be decoded",
        ),
        (unreadable(BadGzipFile("not gzip")), "sent like that: not gzip"),
        (unreadable(EOFError()), "sent like that: EOFError"),
        (unreadable(zlib.error("invalid")), "sent like that: invalid"),
    ],
)
def test_unreadable_record_is_no_broker_away(error: UnreadableRecord, said: str) -> None:
    for refusal in (
        reading_error(error, KAFKA, "read topic orders"),
        broker_refusal(error, KAFKA),
    ):
        with pytest.raises(TopicError, match=said):
            raise refusal


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (TimeoutError(), "read topic orders: the broker did not answer: TimeoutError"),
        (ConnectionResetError("reset"), "the broker did not answer: reset"),
        (errors.KafkaConnectionError("gone"), "the broker did not answer: KafkaConnectionError: g"),
        (errors.NotLeaderForPartitionError(), "the broker did not answer: .*NotLeader"),
        (errors.UnsupportedVersionError("fetch"), "read topic orders: .*UnsupportedVersion.*fetch"),
        (errors.TopicAuthorizationFailedError("orders"), r"a login that may read topic orders \(A"),
    ],
)
def test_error_that_may_pass_names_its_cause(error: Exception, said: str) -> None:
    found = reading_error(error, KAFKA, "read topic orders")
    assert isinstance(found, RetryError)
    with pytest.raises(RetryError, match=said):
        raise found
    assert ("did not answer" in str(found)) == ("did not answer" in said)


def test_act_that_is_not_allowed_is_refused_at_a_start() -> None:
    error = errors.GroupAuthorizationFailedError("ledger")
    assert isinstance(broker_refusal(error, KAFKA), ConnectError)


async def test_part_of_a_service_ends_with_a_record_that_it_cannot_decode() -> None:
    async def work() -> None:
        raise unreadable(no_codec())

    with pytest.raises(TopicError, match=r"'snappy', expected .*pip install cramjam"):
        await endless("confirms", work, KAFKA)
