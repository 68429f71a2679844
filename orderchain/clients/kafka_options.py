"""A KafkaConfig as options of other clients: Java's, as Spark passes them on, and librdkafka's.

Imports no driver, and reads the files of the config when it is called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from orderchain.clients.pem import read_certificates, read_key
from orderchain.errors import SettingError

if TYPE_CHECKING:
    from orderchain.clients.kafka_config import KafkaConfig

SPARK_SECRET_OPTIONS: Final = (
    "kafka.sasl.jaas.config",
    "kafka.ssl.keystore.key",
    "kafka.ssl.key.password",
)
"""The options of `spark_kafka_options` whose values are secret."""

SPARK_REDACTION_REGEX: Final = (
    "(?i)secret|password|token|access[.]?key|sasl[.]jaas[.]config|ssl[.]keystore[.]key"
)
"""For `spark.redaction.regex`: Spark's own default, and our secret options. Without it plans, logs
and the UI would show the key of a client's certificate."""

_LOGIN_MODULES: Final = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}


def java_kafka_options(config: KafkaConfig) -> dict[str, str]:
    """Return the properties of a Java client for `config`. Partly secret.

    Certificates and keys are in the properties themselves, in PEM, so that machines which have
    none of our files can connect. Raises SettingError for a token function, which Java cannot call,
    for files that are gone, and for a key in an old encrypted form.
    """
    options = {
        "bootstrap.servers": config.bootstrap_servers,
        "client.id": config.client_id,
        "security.protocol": config.security_protocol,
    }
    if config.is_sasl:
        options["sasl.mechanism"] = config.sasl_mechanism
        options["sasl.jaas.config"] = _jaas(config)
    if config.is_tls:
        options |= _pem_stores(config)
    return options


def spark_kafka_options(config: KafkaConfig) -> dict[str, str]:
    """Return the options of Spark's Kafka source for `config`; as `java_kafka_options`.

    Keep `SPARK_SECRET_OPTIONS` out of plans and logs with `SPARK_REDACTION_REGEX`. Spark makes the
    client id, one for each of its consumers.
    """
    options = java_kafka_options(config)
    del options["client.id"]
    return {f"kafka.{name}": value for name, value in options.items()}


def librdkafka_options(config: KafkaConfig) -> dict[str, str]:
    """Return the options of confluent-kafka for `config`. Partly secret.

    Raises SettingError for a token function, which is asynchronous here and not in librdkafka.
    """
    options = {
        "bootstrap.servers": config.bootstrap_servers,
        "client.id": config.client_id,
        "security.protocol": config.security_protocol.lower(),
    }
    if config.is_sasl:
        _refuse_token(config, "librdkafka")
        options["sasl.mechanism"] = config.sasl_mechanism
        options["sasl.username"] = config.sasl_username
        options["sasl.password"] = config.read_password()
    if config.is_tls:
        options["ssl.endpoint.identification.algorithm"] = _host_check(config) or "none"
        given = {
            "ssl.ca.location": config.ssl_cafile,
            "ssl.certificate.location": config.ssl_certfile,
            "ssl.key.location": config.ssl_keyfile,
            "ssl.key.password": config.ssl_key_password,
        }
        options |= {name: value for name, value in given.items() if value}
    return options


def _jaas(config: KafkaConfig) -> str:
    """Return the line with which Java logs in."""
    _refuse_token(config, "Java")
    user, password = _quoted(config.sasl_username), _quoted(config.read_password())
    module = _LOGIN_MODULES[config.sasl_mechanism]
    return f"{module} required username={user} password={password};"


def _quoted(value: str) -> str:
    """Quote a value as Kafka reads it, with the tokenizer of Java (java.io.StreamTokenizer).

    In quotes a backslash begins an escape, and a line break would end the value.
    """
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + escaped.replace("\n", "\\n").replace("\r", "\\r") + '"'


def _pem_stores(config: KafkaConfig) -> dict[str, str]:
    stores = {"ssl.endpoint.identification.algorithm": _host_check(config)}
    if config.ssl_cafile:
        stores["ssl.truststore.type"] = "PEM"
        stores["ssl.truststore.certificates"] = read_certificates("ssl_cafile", config.ssl_cafile)
    if config.ssl_certfile:
        key = read_key("ssl_keyfile", config.ssl_keyfile)
        stores["ssl.keystore.type"] = "PEM"
        stores["ssl.keystore.certificate.chain"] = read_certificates(
            "ssl_certfile", config.ssl_certfile
        )
        stores["ssl.keystore.key"] = key.text
        if key.is_encrypted:
            stores["ssl.key.password"] = config.ssl_key_password
    return stores


def _host_check(config: KafkaConfig) -> str:
    return "https" if config.ssl_check_hostname else ""


def _refuse_token(config: KafkaConfig, who: str) -> None:
    if config.sasl_token is not None:
        expected = f"another one for {who}, which cannot call sasl_token"
        raise SettingError("sasl_mechanism", config.sasl_mechanism, expected)
