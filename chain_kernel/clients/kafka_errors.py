"""Errors of Kafka's client: what to raise for each, and whether a retry can help.

aiokafka logs the cause of a failed start and raises an error without it. So after a failure we
connect to each broker once more, with the same settings and aiokafka's own connection, whose
errors have the driver's words.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from aiokafka import errors as kafka
from aiokafka.conn import create_conn
from aiokafka.protocol.admin import ApiVersionRequest
from aiokafka.protocol.metadata import MetadataRequest

from chain_kernel.clients.kafka import UnreadableRecord, connection_options, cut_connection
from chain_kernel.errors import ConnectError, OrderchainError, RetryError, TopicError
from chain_kernel.text import reason_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from chain_kernel.clients.kafka_config import KafkaConfig


DRIVER_ERRORS: Final = (kafka.KafkaError, OSError)
"""All errors that a client of Kafka raises because of brokers and networks. A TimeoutError is an
OSError."""

CAUSE_SECONDS: Final = 3.0
"""The longest look for a cause: a few round trips, and a login."""

_CAUSE_SHARE: Final = 0.25
"""The share of a deadline that is kept for the look, if nothing else answers."""

_NOT_ALLOWED: Final = {
    kafka.TopicAuthorizationFailedError: "topic",
    kafka.GroupAuthorizationFailedError: "group",
    kafka.ClusterAuthorizationFailedError: "cluster",
    kafka.TransactionalIdAuthorizationFailed: "transactional id",
}


class _Unusable(Exception):
    """A broker that could not be reached. Not raised to callers: they get a ConnectError."""

    def __init__(self, host: str, port: int, error: Exception) -> None:
        super().__init__(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
        # aiokafka's own error wraps the one of the network.
        self.cause = error.__cause__ or error


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
    kept = min(CAUSE_SECONDS, seconds * _CAUSE_SHARE)
    try:
        async with asyncio.timeout_at(end - kept):
            if config.sasl_token is not None:
                await _check_token(config)
            yield
    except DRIVER_ERRORS as error:
        cause = await _find_cause(config, error, min(CAUSE_SECONDS, end - loop.time()))
        raise broker_refusal(cause, config, doing=doing) from error


def broker_refusal(error: Exception, config: KafkaConfig, *, doing: str = "") -> OrderchainError:
    """Return what to raise when a client raised `error`.

    `doing` names the act, if a login may not do it, such as "write to topic orders". RetryError
    where the same may succeed later without a change: the broker answers, but not this time; else
    ConnectError.
    """
    servers = config.bootstrap_servers
    if isinstance(error, _Unusable):
        where = "" if str(error) == servers else f"{error}: "
        return ConnectError("kafka", servers, where + _expected(error.cause, config))
    if refusal := lasting_refusal(error, config, doing):
        return refusal
    # Where a broker did not answer the look either, the cause is that.
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
    if isinstance(error, UnreadableRecord):
        if error.missing is None:
            found = "damaged since it was sent" if error.is_damaged else "sent like that"
            what, expected = f"record of topic {error.place}", "one that can be decoded"
            return TopicError(what, f"{found}: {error.reason}", expected)
        compression = f"compression of the record of topic {error.place},"
        expected = "one whose codec is installed (pip install cramjam)"
        return TopicError(compression, error.missing, expected)
    kind = next((word for type_, word in _NOT_ALLOWED.items() if isinstance(error, type_)), None)
    if kind is None:
        return None
    named = ", ".join(map(str, error.args))
    return acl_refusal(config, doing or f"use {kind} {named}".rstrip())


def is_of_one_topic(error: Exception) -> bool:
    """Return whether a broker refused a record for what only this topic is, or does not allow."""
    if isinstance(error, kafka.UnknownTopicOrPartitionError):
        return True
    return isinstance(error, kafka.BrokerResponseError) and not error.retriable


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


async def _find_cause(config: KafkaConfig, error: Exception, within_seconds: float) -> Exception:
    """Return why connecting failed with `error`: an _Unusable, or `error` where none was found.

    It connects to each bootstrap server in turn, then to the brokers that they name. Never raises.
    """
    if lasting_refusal(error, config) is not None:
        return error
    found: list[_Unusable] = []
    (host, port), *_ = config.servers
    if within_seconds <= 0:  # what was cut off has taken all of the time to end
        return _Unusable(host, port, error) if isinstance(error, TimeoutError) else error
    try:
        async with asyncio.timeout(within_seconds):
            for host, port in config.servers:
                try:
                    for its_host, its_port in await _brokers(config, host, port) - {(host, port)}:
                        host, port = its_host, its_port  # an error names it from here on
                        await _brokers(config, host, port)
                    return error
                except DRIVER_ERRORS as cause:
                    # Without the frame of this function, which refers to it.
                    found.append(_Unusable(host, port, cause.with_traceback(None)))
    except ConnectError:  # a file of ours is being replaced: no broker can be asked
        return error
    except TimeoutError as silence:
        found.append(_Unusable(host, port, silence))
    await asyncio.sleep(0)  # aiokafka's own close of what was cut off ends in the next turn
    return found[0]


async def is_broker_there(config: KafkaConfig, seconds: float) -> bool:
    """Return whether a bootstrap server answers, within `seconds` each, and accepts our login.

    A broker that starts accepts connections before it is usable: then it names no broker. Without
    a file of ours that is being replaced, none can be asked.
    """
    for host, port in config.servers:
        with suppress(ConnectError, *DRIVER_ERRORS):
            async with asyncio.timeout(seconds):
                if await _brokers(config, host, port):
                    return True
    return False


async def old_brokers(config: KafkaConfig) -> list[str]:
    """Return the addresses of all brokers that are older than Kafka 3.7.

    Raises DRIVER_ERRORS, and ConnectError if a file of ours is gone.
    """
    *others, (host, port) = config.servers
    brokers: set[tuple[str, int]] | None = None
    for each in others:
        with suppress(*DRIVER_ERRORS):
            brokers = await _brokers(config, *each)
            break
    old = []
    for its_host, its_port in sorted(brokers or await _brokers(config, host, port)):
        async with _connection(config, its_host, its_port) as connection:
            answer = await connection.send(ApiVersionRequest())
        newest = next((each[2] for each in answer.api_versions if each[0] == _FETCH_KEY), 0)
        if newest < _FETCH_OF_3_7:
            old.append(f"{its_host}:{its_port}")
    return old


_FETCH_KEY: Final = 1
_FETCH_OF_3_7: Final = 16
"""Fetch got it in Kafka 3.7, with and without ZooKeeper (KIP-951)."""


async def _check_token(config: KafkaConfig) -> None:
    """Raise SaslAuthenticationFailed where the token is refused: aiokafka treats that as a login.

    Its clients would start, and wait for brokers forever.
    """
    for host, port in config.servers:
        with suppress(OSError, kafka.KafkaConnectionError):
            await _brokers(config, host, port)
            return


@asynccontextmanager
async def _connection(config: KafkaConfig, host: str, port: int) -> AsyncIterator[Any]:
    options = connection_options(config, "look") | {"request_timeout_ms": int(CAUSE_SECONDS * 1000)}
    del options["bootstrap_servers"]
    connection = await create_conn(host, port, **options)
    try:
        yield connection
    finally:
        cut_connection(connection)


async def _brokers(config: KafkaConfig, host: str, port: int) -> set[tuple[str, int]]:
    """Return the addresses of all brokers, as one reports them. Raises what the connection does."""
    async with _connection(config, host, port) as connection:
        metadata = await connection.send(MetadataRequest([]))
    if config.sasl_token is not None and not metadata.brokers:
        # The answer to a refused token ends only its login; this is what a broker sends next.
        raise kafka.SaslAuthenticationFailed("it was refused")
    return {(broker[1], broker[2]) for broker in metadata.brokers}


def _expected(error: BaseException, config: KafkaConfig) -> str:
    if isinstance(error, (TimeoutError, asyncio.CancelledError)):  # aiokafka wraps a cut-off wait
        return "a broker that answers in time (it is silent)"
    if isinstance(error, kafka.SaslAuthenticationFailed):
        wrong = "user or password" if config.sasl_token is None else "token"
        return f"a login that the broker accepts (wrong {wrong}: {_words(error)})"
    is_hung_up = not config.security_protocol.startswith("SASL") and not isinstance(error, OSError)
    hint = "does it ask for TLS or a login? " if is_hung_up else ""
    return f"a broker that speaks {config.security_protocol} with us ({hint}{_words(error)})"


def _words(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
