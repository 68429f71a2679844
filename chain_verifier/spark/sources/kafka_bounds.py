"""The beginning and the end of a topic: the broker returns them once, before any record is read."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JError

from chain_verifier.checks.published import Bounds
from chain_verifier.config import CONNECT_TIMEOUT_S
from chain_verifier.spark.errors import reason_of
from orderchain.clients.options import java_kafka_options
from orderchain.errors import ConnectError, TopicError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from orderchain.clients.kafka_config import KafkaConfig


_BYTES: Final = "org.apache.kafka.common.serialization.ByteArrayDeserializer"


def bounds_of(spark: SparkSession, kafka: KafkaConfig, topic: str, partition: int) -> Bounds:
    """Return the bounds of a partition. Raises ConnectError, or TopicError if it does not exist."""
    jvm: Any = spark._jvm
    with _consumer(jvm, kafka) as consumer:
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
def _consumer(jvm: Any, kafka: KafkaConfig) -> Iterator[Any]:  # noqa: ANN401 - a Java object
    timeout_ms = CONNECT_TIMEOUT_S * 1000
    settings = {
        **java_kafka_options(kafka),
        "client.id": kafka.client_id_of("verifier"),
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
        if not (kafka.is_tls or kafka.is_sasl):
            # Java waits for a broker that hangs up as it does for a missing one.
            reason += "; does it ask for TLS or a login? security_protocol is PLAINTEXT"
        expected = f"a broker that answers ({reason})"
        raise ConnectError("kafka", kafka.bootstrap_servers, expected) from error
