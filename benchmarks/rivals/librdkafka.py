"""A config of Kafka in the words of librdkafka. Partly secret."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from chain_kernel.clients.kafka_config import KafkaConfig


def librdkafka_options(config: KafkaConfig) -> dict[str, str]:
    """Return the options of confluent-kafka for `config`, which has no token function."""
    options = {
        "bootstrap.servers": config.bootstrap_servers,
        "client.id": config.client_id,
        "security.protocol": config.security_protocol.lower(),
    }
    if config.is_sasl:
        options["sasl.mechanism"] = config.sasl_mechanism
        options["sasl.username"] = config.sasl_username
        options["sasl.password"] = config.read_password()
    if config.is_tls:
        options["ssl.endpoint.identification.algorithm"] = (
            "https" if config.ssl_check_hostname else "none"
        )
        given = {
            "ssl.ca.location": config.ssl_cafile,
            "ssl.certificate.location": config.ssl_certfile,
            "ssl.key.location": config.ssl_keyfile,
            "ssl.key.password": config.ssl_key_password,
        }
        options |= {name: value for name, value in given.items() if value}
    return options
