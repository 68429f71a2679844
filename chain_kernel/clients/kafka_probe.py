"""What a look at a broker shows: why a client of Kafka does not connect, and a broker's version.

aiokafka logs the cause of a failed start and raises an error without it, and it treats a broker
that hangs up as one that may be back. So after a failure we connect to each broker once more, with
the same settings and aiokafka's own connection, whose errors are complete.
"""

from __future__ import annotations

import asyncio
import io
import socket
import ssl
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from aiokafka import errors as kafka
from aiokafka.conn import create_conn
from aiokafka.protocol.api import Request, RequestStruct, Response, ResponseHeader_v0
from aiokafka.protocol.metadata import MetadataRequest
from aiokafka.protocol.types import CompactArray, CompactString, Int16, Int32, Schema, TaggedFields
from msgspec import Struct

from chain_kernel.clients import abort
from chain_kernel.clients.kafka import UnreadableRecords, connection_options, cut_connection
from chain_kernel.errors import ConnectError, OrderchainError, RetryError, TopicError
from chain_kernel.text import reason_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from chain_kernel.clients.kafka_config import KafkaConfig


DRIVER_ERRORS: Final = (kafka.KafkaError, OSError)
"""All errors that a client of Kafka raises because of brokers and networks. A TimeoutError is an
OSError."""

PROBE_SECONDS: Final = 3.0
"""The longest look for a cause: a few round trips, and a login."""

_PROBE_MS: Final = int(PROBE_SECONDS * 1_000)

_PROBE_SHARE: Final = 0.25
"""The share of a deadline that is kept for the look, if nothing else answers."""

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


@asynccontextmanager
async def connecting(
    config: KafkaConfig, seconds: float, *, doing: str = ""
) -> AsyncIterator[None]:
    """Run a block that connects, starts and sends the first requests, within `seconds` in all.

    An error of a client in it becomes a ConnectError of one line, which names the cause, or
    RetryError, as `connect_refusal` decides. The block gets at least three quarters of the time.
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
        raise broker_refusal(cause, config, doing=doing) from error


def broker_refusal(error: Exception, config: KafkaConfig, *, doing: str = "") -> OrderchainError:
    """Return what to raise when a client raised `error`, or `find_cause` found it.

    `doing` names the act, if a login may not do it, such as "write to topic orders". RetryError
    where the same may succeed later without a change: the broker answers, but not this time; else
    ConnectError.
    """
    servers = config.bootstrap_servers
    if isinstance(error, Diagnosis):
        where = "" if error.server == servers else f"{error.server}: "
        return ConnectError("kafka", servers, where + error.expected)
    if refusal := lasting_refusal(error, config, doing):
        return refusal
    # Where a broker did not answer the look either, that is a Diagnosis.
    if isinstance(error, (TimeoutError, kafka.KafkaError)):
        return RetryError(f"kafka: {servers}: {_words(error)}")
    return ConnectError("kafka", servers, _expected(error, config))


def lasting_refusal(
    error: Exception, config: KafkaConfig, doing: str = ""
) -> ConnectError | TopicError | None:
    """Return what a person must put right before a retry can help; None for any other error.

    ConnectError: the broker's access control refused the act, which may be allowed at any time.
    TopicError: this process cannot decode a record, now or later. `doing`: as of `broker_refusal`.
    """
    if isinstance(error, UnreadableRecords):
        if error.missing is None:
            what = f"record of topic {error.topics}"
            return TopicError(what, f"damaged: {error.reason}", "one that can be decoded")
        compression = f"compression of records of topic {error.topics}"
        expected = "one whose codec is installed (pip install cramjam)"
        return TopicError(compression, error.missing, expected)
    kind = next((word for type_, word in _NOT_ALLOWED.items() if isinstance(error, type_)), None)
    if kind is None:
        return None
    named = ", ".join(map(str, error.args))
    return acl_refusal(config, doing or f"use {kind} {named}".rstrip())


def reading_error(error: Exception, config: KafkaConfig, doing: str) -> TopicError | RetryError:
    """Return what a reader raises for an error of its client; arguments as `lasting_refusal`.

    RetryError where the same may succeed later, whether the broker was away or has refused; else
    TopicError.
    """
    refusal = lasting_refusal(error, config, doing)
    if isinstance(refusal, TopicError):
        return refusal
    if refusal is not None:
        return RetryError(reason_of(refusal))
    is_away = isinstance(error, kafka.KafkaTimeoutError) or getattr(error, "retriable", True)
    silent = "the broker did not answer: " if is_away else ""
    return RetryError(f"kafka: {doing}: {silent}{_words(error)}")


def acl_refusal(config: KafkaConfig, act: str) -> ConnectError:
    """Return a ConnectError for an act, such as "write to topic orders", that was refused."""
    expected = f"{login_of(config)} that may {act} (ACL)"
    return ConnectError("kafka", config.bootstrap_servers, expected)


def login_of(config: KafkaConfig) -> str:
    """Return, in words, which login brokers see for these clients."""
    if config.sasl_username:
        return f"a user {config.sasl_username!r}"
    return "a client certificate" if config.ssl_certfile else "a login"


async def find_cause(config: KafkaConfig, error: Exception, within_seconds: float) -> Exception:
    """Return why connecting failed with `error`: a Diagnosis, or `error` where none was found.

    It connects to each bootstrap server in turn, then to the brokers that they name. Never raises.
    """
    if lasting_refusal(error, config):
        return error
    silent = Diagnosis(config.bootstrap_servers, "a broker that answers in time (it is silent)")
    if within_seconds <= 0:  # what was cut off took all of the time to end
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
    """Return whether a bootstrap server answers, within `seconds` each, and accepts our login.

    A broker that starts accepts connections before it is usable: then it names no broker.
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
            host, port = broker_host, broker_port  # an error names it from here on
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
    """Raise SaslAuthenticationFailed where the token is refused: aiokafka treats that as a login.

    Its clients would start, and wait for brokers forever.
    """
    for host, port in config.servers:
        with suppress(OSError, kafka.KafkaConnectionError):
            await _brokers(config, host, port)
            return


class _HungUpAfterHello(kafka.KafkaConnectionError):  # type: ignore[misc]
    """The broker listed the requests that it knows, and hung up at the next one."""


async def _brokers(config: KafkaConfig, host: str, port: int) -> set[tuple[str, int]]:
    """Return the addresses of all brokers, as one reports them. Raises what the connection does."""
    connection = await _probe(config, host, port)
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
        # The answer to a refused token ends only its login; this is what a broker sends next.
        raise kafka.SaslAuthenticationFailed("it was refused")
    return {(broker[1], broker[2]) for broker in metadata.brokers}


async def _probe(config: KafkaConfig, host: str, port: int) -> Any:  # noqa: ANN401 - as above
    options = connection_options(config, "probe") | {"request_timeout_ms": _PROBE_MS}
    del options["bootstrap_servers"]
    return await create_conn(host, port, **options)


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
    """Return whether the other side closed the connection without a readable message."""
    cause = error.__cause__ if isinstance(error, kafka.KafkaConnectionError) else error
    if isinstance(cause, (EOFError, ConnectionResetError, ConnectionAbortedError, BrokenPipeError)):
        return True
    return cause is None or (isinstance(cause, ssl.SSLError) and "EOF" in (cause.reason or ""))


def _expected(error: Exception, config: KafkaConfig) -> str:
    """Return what was expected where `error` occurred instead."""
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
    """Return the text for a broker that ends TLS: nearly always for the client's certificate."""
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
    """Return whether a port answers a TLS handshake, with any certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        _, writer = await asyncio.open_connection(host, port, ssl=context)
    except ssl.SSLError as error:
        return "ALERT" in (error.reason or "")
    except OSError:
        return False
    writer.close()  # first: after an abort alone, a writer of TLS still seems open to itself
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


# -- versions ------------------------------------------------------------------------------------


class BrokerVersion(Struct, frozen=True, order=True):
    """What a broker's protocol says of its version: brokers do not send the number itself."""

    level: int
    """The highest `metadata.version` that it knows; 0: it names none."""
    fetch: int
    """The highest version of Fetch that it takes."""

    @property
    def is_supported(self) -> bool:
        """Whether it is Kafka 3.7 or newer."""
        return self.fetch >= _FETCH_OF_3_7

    def __str__(self) -> str:
        """Return the number as far as it is known: `4.1`, `newer than 4.1`, `3.7 or newer`."""
        if self.level > _LEVELS[0][0] or (not self.level and self.is_supported):
            return f"newer than {_LEVELS[0][1]}" if self.level else "3.7 or newer"
        known = (version for level, version in _LEVELS if self.level >= level > 0)
        return next(known, "older than 3.7")


_FETCH_OF_3_7: Final = 16
"""Fetch got it in Kafka 3.7, with and without ZooKeeper (KIP-951)."""

_LEVELS: Final = (
    (27, "4.1"),
    (22, "4.0"),
    (21, "3.9"),
    (20, "3.8"),
    (15, "3.7"),
    (12, "3.6"),
    (9, "3.5"),
    (8, "3.4"),
    (4, "3.3"),
)
"""The first level of `metadata.version` of each Kafka, newest first; of the newest the last one."""

_FETCH_KEY: Final = 1
_SUPPORTED_FEATURES: Final = 0
"""The tag under which a broker lists its features, with the versions of each that it knows."""

_NAME: Final = CompactString("utf-8")
_FEATURES: Final = CompactArray(
    ("name", _NAME), ("least", Int16), ("highest", Int16), ("tags", TaggedFields)
)


class _VersionsAnswer(Response):  # type: ignore[misc] # aiokafka has no types
    API_KEY = 18
    API_VERSION = 3
    SCHEMA = Schema(
        ("error_code", Int16),
        (
            "requests",
            CompactArray(
                ("key", Int16), ("least", Int16), ("highest", Int16), ("tags", TaggedFields)
            ),
        ),
        ("throttle_time_ms", Int32),
        ("tags", TaggedFields),
    )


class _VersionsQuestion3(RequestStruct):  # type: ignore[misc]
    API_KEY = 18
    API_VERSION = 3
    FLEXIBLE_VERSION = True
    RESPONSE_TYPE = _VersionsAnswer
    SCHEMA = Schema(("software", _NAME), ("software_version", _NAME), ("tags", TaggedFields))

    def parse_response_header(self, read_buffer: io.BytesIO) -> ResponseHeader_v0:
        """Return the header, which for this answer alone never has tags."""
        return ResponseHeader_v0.decode(read_buffer)


class _VersionsQuestion(Request[_VersionsQuestion3]):  # type: ignore[misc]
    """Asks which requests and features a broker knows; aiokafka's own does not ask for features."""

    API_KEY = 18

    def build(self, request_struct_class: type[_VersionsQuestion3]) -> _VersionsQuestion3:
        return request_struct_class("orderchain", "1", {})


async def _all_brokers(config: KafkaConfig) -> set[tuple[str, int]]:
    """Return the addresses of all brokers, as the first bootstrap server that answers has them."""
    *others, last = config.servers
    for host, port in others:
        with suppress(*DRIVER_ERRORS):
            return await _brokers(config, host, port)
    return await _brokers(config, *last)


async def read_broker_versions(config: KafkaConfig) -> dict[str, BrokerVersion]:
    """Ask every broker of the cluster for its version; by address. Raises DRIVER_ERRORS."""
    asked: dict[str, BrokerVersion] = {}
    for host, port in sorted(await _all_brokers(config)):
        connection = await _probe(config, host, port)
        try:
            answer = await connection.send(_VersionsQuestion())
        except NotImplementedError:  # a broker before 2.4 does not know the question
            asked[_server(host, port)] = BrokerVersion(0, 0)
            continue
        finally:
            cut_connection(connection)
        features = _FEATURES.decode(io.BytesIO(answer.tags.get(_SUPPORTED_FEATURES, b"\x01")))
        asked[_server(host, port)] = BrokerVersion(
            level=next((each[2] for each in features if each[0] == "metadata.version"), 0),
            fetch=next((each[2] for each in answer.requests if each[0] == _FETCH_KEY), 0),
        )
    return asked
