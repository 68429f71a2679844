"""Connections to Kafka: what they are made with, and in one line why one does not come about.

aiokafka logs the cause of a failed start and raises an error without it, and it takes a broker that
hangs up for one that may be back. So after a failure each broker is connected to once more, by the
same settings and aiokafka's own connection, whose errors are whole.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from aiokafka import errors as kafka
from aiokafka.abc import AbstractTokenProvider
from aiokafka.conn import create_conn
from aiokafka.protocol.metadata import MetadataRequest

from orderchain.clients import abort
from orderchain.clients.kafka_client import cut_connection
from orderchain.errors import ConnectError, OrderchainError, RetryError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from orderchain.clients.kafka_config import KafkaConfig

DRIVER_ERRORS: Final = (kafka.KafkaError, OSError)
"""All that a client of Kafka raises for what brokers and networks do. A TimeoutError is an
OSError."""

PROBE_SECONDS: Final = 3.0
"""The longest look for a cause: a few round trips, and a login."""

_PROBE_MS: Final = int(PROBE_SECONDS * 1_000)

_PROBE_SHARE: Final = 0.25
"""Of a deadline, what is kept for the look when all else was silent."""

_HUNG_UP: Final = "does it ask for TLS or a login?"

_CERTIFICATE_TIMES: Final = frozenset({9, 10})
"""OpenSSL's codes for a certificate that is not valid yet, and for one that has expired."""
_CERTIFICATE_NAMES: Final = frozenset({62, 64})
"""The same for a host's name, and for its address, that the certificate does not have."""

_CERTIFICATE_ALERTS: Final = ("CERTIFICATE", "UNKNOWN_CA", "HANDSHAKE_FAILURE", "ACCESS_DENIED")
"""Words of OpenSSL's names for the alerts by which a server refuses a client's certificate."""

_NOT_ALLOWED: Final = {
    kafka.TopicAuthorizationFailedError: "topic",
    kafka.GroupAuthorizationFailedError: "group",
    kafka.ClusterAuthorizationFailedError: "cluster",
    kafka.TransactionalIdAuthorizationFailed: "transactional id",
}


class Diagnosis(Exception):
    """What a look at one broker has found. Not raised to callers: they get a ConnectError."""

    def __init__(self, server: str, expected: str) -> None:
        super().__init__(f"{server}: {expected}")
        self.server = server
        self.expected = expected


def connection_options(config: KafkaConfig, role: str) -> dict[str, Any]:
    """Return aiokafka's names for `config`. Secret. Raises SettingError for files gone since."""
    options: dict[str, Any] = {
        "bootstrap_servers": config.bootstrap_servers,
        "client_id": config.client_id_of(role),
        "security_protocol": config.security_protocol,
        "ssl_context": config.tls_context(),
    }
    if config.is_sasl:
        options["sasl_mechanism"] = config.sasl_mechanism
        if config.sasl_token is None:
            options["sasl_plain_username"] = config.sasl_username
            options["sasl_plain_password"] = config.read_password()
        else:
            options["sasl_oauth_token_provider"] = _Tokens(config.sasl_token)
    return options


class _Tokens(AbstractTokenProvider):  # type: ignore[misc]
    """Gives aiokafka a token for each new connection."""

    def __init__(self, draw: Callable[[], Awaitable[str]]) -> None:
        self._draw = draw

    async def token(self) -> str:
        """Return a token."""
        return await self._draw()


@asynccontextmanager
async def connecting(
    config: KafkaConfig, seconds: float, *, doing: str = ""
) -> AsyncIterator[None]:
    """Hold a block that connects, begins and asks first questions, within `seconds` in all.

    What a client raises in it becomes a ConnectError of one line, which names the cause, or
    RetryError, as `connect_refusal` says. The block gets three quarters of the time at least.
    `doing`: as there.
    """
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    kept = min(PROBE_SECONDS, seconds * _PROBE_SHARE)
    try:
        async with asyncio.timeout_at(end - kept):
            if config.sasl_token is not None:
                await _check_token(config)
            yield
    except DRIVER_ERRORS as error:
        cause = await find_cause(config, error, min(PROBE_SECONDS, end - loop.time()))
        raise connect_refusal(cause, config, doing=doing) from error


def connect_refusal(error: Exception, config: KafkaConfig, *, doing: str = "") -> OrderchainError:
    """Return what to raise when a client raised `error`, or `find_cause` found it.

    `doing` says what was being done, for what a login may not do, such as "write to topic orders".
    RetryError where the same may pass later without a change: the broker answers, but not this
    time; else ConnectError.
    """
    servers = config.bootstrap_servers
    if isinstance(error, Diagnosis):
        where = "" if error.server == servers else f"{error.server}: "
        return ConnectError("kafka", servers, where + error.expected)
    if allowed := not_allowed(error, config, doing):
        return allowed
    # Where a broker was silent to a look, too, that is a Diagnosis.
    if isinstance(error, (TimeoutError, kafka.KafkaError)):
        return RetryError(f"kafka: {servers}: {_words(error)}")
    return ConnectError("kafka", servers, _expected(error, config))


def not_allowed(error: Exception, config: KafkaConfig, doing: str = "") -> ConnectError | None:
    """Return a ConnectError when the broker's access control refused `error`'s act, else None."""
    kind = next((word for type_, word in _NOT_ALLOWED.items() if isinstance(error, type_)), None)
    if kind is None:
        return None
    named = ", ".join(map(str, error.args))
    return acl_refusal(config, doing or f"use {kind} {named}".rstrip())


def acl_refusal(config: KafkaConfig, act: str) -> ConnectError:
    """Return a ConnectError for an act, such as "write to topic orders", that was refused."""
    expected = f"{login_of(config)} that may {act} (ACL)"
    return ConnectError("kafka", config.bootstrap_servers, expected)


def login_of(config: KafkaConfig) -> str:
    """Return whom brokers take these clients for, as words."""
    if config.sasl_username:
        return f"a user {config.sasl_username!r}"
    return "a client certificate" if config.ssl_certfile else "a login"


async def find_cause(config: KafkaConfig, error: Exception, within_seconds: float) -> Exception:
    """Return why connecting failed with `error`: a Diagnosis, or `error` where none was found.

    Each bootstrap server is connected to in turn, then the brokers that they name. Never raises.
    """
    if isinstance(error, tuple(_NOT_ALLOWED)):
        return error
    silent = Diagnosis(config.bootstrap_servers, "a broker that answers in time (it is silent)")
    if within_seconds <= 0:  # what was cut off took all of the time to come to its end
        return silent if isinstance(error, TimeoutError) else error
    found: list[Diagnosis] = []
    try:
        async with asyncio.timeout(within_seconds):
            for host, port in config.servers:
                diagnosis = await _look(config, host, port)
                if diagnosis is None:
                    return error
                found.append(diagnosis)
    except TimeoutError:
        return found[0] if found else silent
    return found[0] if found else error


async def is_broker_there(config: KafkaConfig, seconds: float) -> bool:
    """Say whether one of the bootstrap servers answers, within `seconds` each, and lets us in.

    A broker that starts accepts connections before it is of use to anybody: then it names none.
    """
    for host, port in config.servers:
        with suppress(*DRIVER_ERRORS):
            async with asyncio.timeout(seconds):
                if await _brokers(config, host, port):
                    return True
    return False


async def _look(config: KafkaConfig, host: str, port: int) -> Diagnosis | None:
    """Connect to a bootstrap server, and to the brokers that it names; None: all of them answer."""
    try:
        brokers = await _brokers(config, host, port)
        for broker_host, broker_port in brokers - {(host, port)}:
            host, port = broker_host, broker_port  # named by an error from here on
            await _brokers(config, host, port)
    except _HungUpAfterHello:
        login = (
            f"a client with a login ({_HUNG_UP} security_protocol is {config.security_protocol})"
        )
        return Diagnosis(_server(host, port), login)
    except DRIVER_ERRORS as error:
        return Diagnosis(_server(host, port), await _explained(config, host, port, error))
    return None


async def _check_token(config: KafkaConfig) -> None:
    """Raise SaslAuthenticationFailed where the token is refused: aiokafka takes that for a login.

    Its clients would begin, and wait for brokers for ever.
    """
    for host, port in config.servers:
        with suppress(OSError, kafka.KafkaConnectionError):
            await _brokers(config, host, port)
            return


class _HungUpAfterHello(kafka.KafkaConnectionError):  # type: ignore[misc]
    """The broker said which requests it knows, and hung up at the next one."""


async def _brokers(config: KafkaConfig, host: str, port: int) -> set[tuple[str, int]]:
    """Return the addresses of all brokers, asked of one. Raises what the connection does."""
    options = connection_options(config, "probe") | {"request_timeout_ms": _PROBE_MS}
    del options["bootstrap_servers"]
    connection = await create_conn(host, port, **options)
    try:
        metadata = await connection.send(MetadataRequest([]))
    except kafka.KafkaConnectionError as error:
        # Not with TLS: there a client certificate is refused only after the handshake.
        if isinstance(error.__cause__, ssl.SSLError):
            raise
        raise _HungUpAfterHello from error
    finally:
        cut_connection(connection)
    if config.sasl_token is not None and not metadata.brokers:
        # The answer to a refused token ends its login alone; this one is what a broker sends next.
        raise kafka.SaslAuthenticationFailed("it was refused")
    return {(broker[1], broker[2]) for broker in metadata.brokers}


async def _explained(config: KafkaConfig, host: str, port: int, error: Exception) -> str:
    """Return what was expected of a broker that raised `error`; looks once more for hang-ups."""
    if not _is_hang_up(error):
        return _expected(error, config)
    protocol = config.security_protocol
    if not config.is_tls:
        if await _speaks_tls(host, port):
            return f"a client with TLS ({_HUNG_UP} security_protocol is {protocol})"
        return f"a broker that speaks {protocol}: it hung up ({_HUNG_UP})"
    if await _speaks_plaintext(host, port):
        return f"TLS: this port speaks plaintext (security_protocol is {protocol})"
    return _refused_certificate(config, "it hung up")


def _is_hang_up(error: Exception) -> bool:
    """Say whether the other side closed the connection without a word that can be read."""
    cause = error.__cause__ if isinstance(error, kafka.KafkaConnectionError) else error
    if isinstance(cause, (EOFError, ConnectionResetError, ConnectionAbortedError, BrokenPipeError)):
        return True
    return cause is None or (isinstance(cause, ssl.SSLError) and "EOF" in (cause.reason or ""))


def _expected(error: Exception, config: KafkaConfig) -> str:
    """Return what was expected where `error` came up instead."""
    cause = error.__cause__ if isinstance(error, kafka.KafkaConnectionError) else error
    if isinstance(cause, ssl.SSLError):
        return _expected_of_tls(cause, config)
    if isinstance(cause, kafka.KafkaError):
        return _expected_of_login(cause, config)
    if isinstance(cause, socket.gaierror):
        return f"a host name that can be resolved ({cause.strerror})"
    if isinstance(cause, TimeoutError):
        return "a broker that answers in time (it is silent)"
    if isinstance(cause, ConnectionRefusedError):
        return "a broker that listens there (the port is closed)"
    return f"a broker that can be reached ({_words(cause or error)})"


def _expected_of_tls(error: ssl.SSLError, config: KafkaConfig) -> str:
    if not isinstance(error, ssl.SSLCertVerificationError):
        alert = error.reason or _words(error)
        if any(word in alert for word in _CERTIFICATE_ALERTS):
            return _refused_certificate(config, alert)
        return f"TLS that both sides speak ({alert})"
    reason = error.verify_message.rstrip(".")
    if error.verify_code in _CERTIFICATE_TIMES:
        return f"a broker's certificate that is valid today ({reason})"
    if error.verify_code in _CERTIFICATE_NAMES:
        return f"a broker's certificate for the host that was asked for ({reason})"
    by = f"ssl_cafile {config.ssl_cafile}" if config.ssl_cafile else "a CA of the system"
    return f"a broker's certificate signed by {by} ({reason})"


def _refused_certificate(config: KafkaConfig, reason: str) -> str:
    """Return the words for a broker that ends TLS: nearly always over the client's certificate."""
    if config.ssl_certfile:
        return f"a client certificate that the broker accepts, not {config.ssl_certfile} ({reason})"
    return f"a client certificate: none was given (ssl_certfile; {reason})"


def _expected_of_login(error: kafka.KafkaError, config: KafkaConfig) -> str:
    if isinstance(error, kafka.SaslAuthenticationFailed):
        if config.sasl_token is not None:
            return f"a token that the broker accepts ({_words(error)})"
        return f"a login that the broker accepts (wrong user or password: {login_of(config)})"
    if isinstance(error, kafka.UnsupportedSaslMechanismError):
        return f"a sasl_mechanism that the broker offers, not {config.sasl_mechanism}"
    if isinstance(error, kafka.IllegalSaslStateError):
        return f"no login: this port takes none (security_protocol is {config.security_protocol})"
    return f"a login that the broker accepts ({_words(error)})"


async def _speaks_tls(host: str, port: int) -> bool:
    """Say whether a port answers a TLS handshake; whose certificate it is plays no part."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        _, writer = await asyncio.open_connection(host, port, ssl=context)
    except ssl.SSLError as error:
        return "ALERT" in (error.reason or "")
    except OSError:
        return False
    writer.close()  # first: an abort alone leaves a writer of TLS open to itself
    abort(writer.transport)
    return True


async def _speaks_plaintext(host: str, port: int) -> bool:
    try:
        connection = await create_conn(
            host, port, request_timeout_ms=_PROBE_MS, client_id="orderchain-probe"
        )
    except DRIVER_ERRORS:
        return False
    cut_connection(connection)
    return True


def _server(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _words(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
