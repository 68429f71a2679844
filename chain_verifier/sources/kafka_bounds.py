"""Where a topic begins and ends, asked of the broker once, before anything is read."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JError

from chain_verifier.bounds import Bounds
from chain_verifier.config import CONNECT_TIMEOUT_S
from chain_verifier.spark_errors import reason_of
from orderchain.errors import ConnectError, TopicError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

_BYTES: Final = "org.apache.kafka.common.serialization.ByteArrayDeserializer"


def bounds_of(spark: SparkSession, servers: str, topic: str, partition: int) -> Bounds:
    """Return the bounds of a partition. Raises ConnectError, or TopicError when it is not there."""
    jvm: Any = spark._jvm
    with _consumer(jvm, servers) as consumer:
        found = consumer.partitionsFor(topic)
        numbers = [] if found is None else [one.partition() for one in found]
        if partition not in numbers:
            raise TopicError("topic", f"{topic}, partition {partition}", "a topic that exists")
        place = jvm.org.apache.kafka.common.TopicPartition(topic, partition)
        places = jvm.java.util.Collections.singletonList(place)
        return Bounds(
            first=consumer.beginningOffsets(places).get(place),
            end=consumer.endOffsets(places).get(place),
        )


@contextmanager
def _consumer(jvm: Any, servers: str) -> Iterator[Any]:  # noqa: ANN401 - a Java object
    timeout_ms = CONNECT_TIMEOUT_S * 1000
    settings = {
        "bootstrap.servers": servers,
        "key.deserializer": _BYTES,
        "value.deserializer": _BYTES,
        "allow.auto.create.topics": "false",
        "default.api.timeout.ms": str(timeout_ms),
        "request.timeout.ms": str(timeout_ms),
    }
    try:
        consumer = jvm.org.apache.kafka.clients.consumer.KafkaConsumer(settings)
        try:
            yield consumer
        finally:
            consumer.close()
    except (Py4JError, TypeError) as error:
        reason = reason_of(error)
        raise ConnectError("kafka", servers, f"a broker that answers ({reason})") from error
