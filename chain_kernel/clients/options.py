"""Our configs as options of other clients: the JDBC driver's, and librdkafka's.

PostgreSQL's JDBC driver knows nothing of libpq's environment. It gets what the config says instead,
so that both drivers require the same of a server. Imports no driver, and reads the files of a
config when it is called.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from msgspec import Struct

from chain_kernel.clients.database_config import SYSTEM_AUTHORITIES
from chain_kernel.clients.pem import read_key
from chain_kernel.errors import SettingError

if TYPE_CHECKING:
    from chain_kernel.clients.database_config import DatabaseConfig
    from chain_kernel.clients.kafka_config import KafkaConfig


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


def _host_check(config: KafkaConfig) -> str:
    return "https" if config.ssl_check_hostname else ""


def _refuse_token(config: KafkaConfig, who: str) -> None:
    if config.sasl_token is not None:
        expected = f"another one for {who}, which cannot call sasl_token"
        raise SettingError("sasl_mechanism", config.sasl_mechanism, expected)


_SERVER_TYPES: Final = {
    "": "any",
    "any": "any",
    "read-write": "primary",
    "primary": "primary",
    "read-only": "secondary",
    "standby": "secondary",
    "prefer-standby": "preferSecondary",
}
_KEY_SUFFIXES: Final = (".key", ".pem")
"""Suffixes of files that the driver reads as PEM; it treats all others as binary."""
_CONVERT: Final = "(openssl pkcs8 -topk8 -nocrypt -in OLD -out NEW.key)"
_JAVA_AUTHORITIES: Final = "org.postgresql.ssl.DefaultJavaSSLFactory"


class JdbcAddress(Struct, frozen=True, kw_only=True):
    """Where and as whom to connect. `properties` may hold the password: never shown."""

    url: str
    """Hosts, ports and database; no user, no password."""
    properties: Mapping[str, str]

    def __repr__(self) -> str:
        return f"JdbcAddress(url={self.url!r})"

    def __rich_repr__(self) -> list[tuple[str, str]]:
        """As `repr`."""
        return [("url", self.url)]


def jdbc_address(config: DatabaseConfig) -> JdbcAddress:
    """Return the JDBC address of a database, with the same TLS as asyncpg's.

    Files are named, not copied: machines that run parts of a query need them at the same paths.
    Raises SettingError for a Unix socket, and for what this driver cannot do: revocation lists, a
    version of TLS, and keys that are encrypted, not in PKCS#8, or not named `.key` or `.pem`.
    """
    hosts = [(host, port) for host, port in config.addresses if not host.startswith("/")]
    if not hosts or (config.host and len(hosts) < len(config.addresses)):
        raise SettingError("database", config.shown, "a host and a port: JDBC needs TCP")
    names = ",".join(
        f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in hosts
    )
    given = {
        "user": config.login,
        # One for all hosts: the first that a passfile has.
        "password": next(filter(None, (config.read_password(*at) for at in hosts)), ""),
        "targetServerType": _SERVER_TYPES[config.target_session_attrs],
        "ApplicationName": config.application_name,
        "options": config.options,
        "connectTimeout": str(config.connect_timeout),
        **_tls(config),
    }
    return JdbcAddress(
        url=f"jdbc:postgresql://{names}/{quote(config.database, safe='')}",
        properties={name: value for name, value in given.items() if value},
    )


def _tls(config: DatabaseConfig) -> dict[str, str]:
    for field in ("sslcrl", "ssl_min_protocol_version"):
        if value := getattr(config, field):
            raise SettingError(field, value, "none: Spark's JDBC driver does not know it")
    options = {"sslmode": config.tls_mode, "sslNegotiation": config.sslnegotiation}
    if config.sslrootcert == SYSTEM_AUTHORITIES:
        options["sslfactory"] = _JAVA_AUTHORITIES
    else:
        options["sslrootcert"] = config.sslrootcert
    if config.sslcert:
        options |= {"sslcert": config.sslcert, "sslkey": config.sslkey}
        options["pemKeyAlgorithm"] = _key_algorithm(config)
    return options


def _key_algorithm(config: DatabaseConfig) -> str:
    """Return the algorithm of the client's key, after checking that the driver can read it."""
    key = read_key("sslkey", config.sslkey)
    if key.is_encrypted or not key.is_as_stored:
        expected = f"for JDBC a key in PKCS#8 without a password {_CONVERT}"
        raise SettingError("sslkey", config.sslkey, expected)
    if not config.sslkey.endswith(_KEY_SUFFIXES):
        raise SettingError("sslkey", config.sslkey, "for JDBC a file named *.key or *.pem")
    return key.algorithm
