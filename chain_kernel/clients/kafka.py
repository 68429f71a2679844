"""Clients of Kafka: how they are made, started and closed.

No other module constructs a client of aiokafka; only `kafka_errors`, `kafka_records` and `topics`
import it too.
However a client ends, it leaves no connection open. aiokafka closes its connections as the last
step of a `stop`. A `stop` that a deadline, a cancellation or an error cuts off never gets that far,
and neither does a `start` that is cut off during its first request. A process that goes on would
then keep sockets, and a place in its group.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from contextlib import asynccontextmanager, suppress
from functools import partial
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final
from weakref import ref

import aiokafka.client
from aiokafka import (
    AIOKafkaConsumer,
    AIOKafkaProducer,
    ConsumerRebalanceListener,
    ConsumerRecord,
    TopicPartition,
)
from aiokafka.abc import AbstractTokenProvider
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import (
    CommitFailedError,
    IllegalStateError,
    InvalidTopicError,
    KafkaError,
    MessageSizeTooLargeError,
    NoOffsetForPartitionError,
    OffsetOutOfRangeError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
)
from aiokafka.producer.message_accumulator import BatchBuilder
from aiokafka.protocol.metadata import MetadataRequest
from aiokafka.protocol.produce import ProduceRequest

from chain_kernel.clients import abort
from chain_kernel.clients.kafka_records import RecordConsumer, UnreadableRecord
from chain_kernel.errors import ConnectError, SettingError
from chain_kernel.tasks import of_others
from chain_kernel.text import named_reason, reason_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from chain_kernel.clients.kafka_config import KafkaConfig


# What others need of aiokafka, and may not import from there.
__all__ = [
    "AIOKafkaAdminClient",
    "AIOKafkaConsumer",
    "AIOKafkaProducer",
    "BatchBuilder",
    "CommitFailedError",
    "ConsumerRebalanceListener",
    "ConsumerRecord",
    "IllegalStateError",
    "InvalidTopicError",
    "KafkaError",
    "MessageSizeTooLargeError",
    "NoOffsetForPartitionError",
    "OffsetOutOfRangeError",
    "TopicAuthorizationFailedError",
    "TopicPartition",
    "UnknownTopicOrPartitionError",
    "UnreadableRecord",
]


_log = logging.getLogger(__name__)

_GRACE_SECONDS: Final = 2.0
"""Time for an operation that was cut off to end by itself."""

_LOOK_MS: Final = 500
"""Time of one look for a record."""

_leaving: set[asyncio.Task[None]] = set()
"""Ends that go on by themselves: a task without a reference may vanish. Few run at once."""


async def start_client(client: Any) -> None:  # noqa: ANN401 - aiokafka has no types
    """Start a consumer, a producer or an admin client; raises what its `start` raises.

    After a cancellation (a deadline is one) the start first gets up to 2 s to end by itself:
    `close_client` can close only what the client knows about.
    """
    starting = asyncio.ensure_future(client.start())
    try:
        await asyncio.shield(starting)
    except asyncio.CancelledError:
        await asyncio.wait([starting], timeout=_GRACE_SECONDS)
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        raise
    finally:
        del starting  # its error refers to this frame


async def close_client(client: Any, within_seconds: float) -> None:  # noqa: ANN401 - as above
    """Stop a client, started or not, and never raise for what its `stop` raises.

    When `within_seconds` are over, or at a cancellation, its connections are closed at once. What
    it waited for then fails, so that it ends by itself; it gets 2 s more for that.
    """
    ending = asyncio.ensure_future(end_client(client))
    try:
        await asyncio.wait([ending], timeout=within_seconds)
    finally:
        if not ending.done():
            _cut(client)
            await asyncio.wait([ending], timeout=_GRACE_SECONDS)
            ending.cancel()
            await asyncio.wait([ending], timeout=_GRACE_SECONDS)


@asynccontextmanager
async def started(client: Any, close_seconds: float = 2.0) -> AsyncIterator[Any]:  # noqa: ANN401
    """Start a client for the block, and close it however the block or the start ends.

    Raises what its `start` raises. `close_seconds`: as `within_seconds` of `close_client`.
    """
    try:
        await start_client(client)
        yield client
    finally:
        await close_client(client, close_seconds)


async def leave_client(client: Any, within_seconds: float) -> None:  # noqa: ANN401 - as above
    """Stop a producer; a stop that takes longer than `within_seconds` goes on by itself.

    While the broker is away, a stop waits until the records have expired. A producer that is cut
    off would keep its sender and its records forever.
    """
    ending = asyncio.create_task(end_client(client), name="orderchain client end")
    _leaving.add(ending)
    ending.add_done_callback(_leaving.discard)
    await asyncio.wait([ending], timeout=within_seconds)


async def end_client(client: Any) -> None:  # noqa: ANN401 - as above
    """Stop a client however long it takes; never raise for what its `stop` raises.

    When cancelled, it closes the connections and raises CancelledError.
    """
    stop = client.stop if hasattr(client, "stop") else client.close
    stopping = asyncio.ensure_future(stop())
    try:
        # Not awaited itself: a stop may raise a CancelledError without a request.
        await asyncio.wait([stopping])
    finally:
        stopping.cancel()
        _cut(client)
    if not stopping.cancelled() and (error := stopping.exception()) is not None:
        _log.debug("a client of Kafka did not stop in order: %s", named_reason(error))


class _Ended(dict[Any, Any]):
    """The connections of a client that has ended: one that comes late is closed at once.

    aiokafka does not wait for a connection that a request is making while its client closes.
    """

    def __setitem__(self, name: Any, connection: Any) -> None:  # noqa: ANN401 - as above
        super().__setitem__(name, connection)
        cut_connection(connection)


def _cut(client: Any) -> None:  # noqa: ANN401 - as above
    """Close every connection, now and later, and end the task that would open others.

    Repeats do no harm.

    aiokafka 0.14 has no public name for either. Without them, a process whose stop was cut off
    keeps its sockets, and its place in a group until the session ends.
    """
    # A producer has a public name for it, consumers and admin clients do not.
    connections = client.client if hasattr(client, "client") else client._client
    if connections._sync_task is not None:
        connections._sync_task.cancel()
    connections._conns = _Ended(connections._conns)
    # Cycles, which a calm collector keeps: a coordinator listens, and `copy_records_once` has sent.
    connections.cluster._listeners.clear()
    connections.__dict__.pop("send", None)
    for connection in list(connections._conns.values()):
        cut_connection(connection)


def cut_connection(connection: Any) -> None:  # noqa: ANN401 - as above
    """Close one connection of aiokafka at once. Repeats do no harm.

    Its own `close` first sends what was written, which a frozen broker may never take.
    """
    connection.close()
    transport = getattr(connection._protocol, "_transport", None)  # None once it is closed
    if transport is not None:
        abort(transport)


def connection_options(config: KafkaConfig, role: str) -> dict[str, Any]:
    """Return `config` as options of aiokafka. Secret. Raises ConnectError if a file is gone."""
    options: dict[str, Any] = {
        "bootstrap_servers": config.bootstrap_servers,
        "client_id": config.client_id_of(role),
        "security_protocol": config.security_protocol,
    }
    try:
        options["ssl_context"] = config.tls_context()
        if config.is_sasl:
            options["sasl_mechanism"] = config.sasl_mechanism
            if config.sasl_token is None:
                options["sasl_plain_username"] = config.sasl_username
                options["sasl_plain_password"] = config.read_password()
            else:
                options["sasl_oauth_token_provider"] = _Tokens(config.sasl_token)
    except SettingError as error:
        # As a connect to PostgreSQL: the config has read its files before.
        raise ConnectError(error.field, error.value, error.expected) from error
    return options


class _Tokens(AbstractTokenProvider):  # type: ignore[misc]
    """Gives aiokafka a token for each new connection."""

    def __init__(self, draw: Callable[[], Awaitable[str]]) -> None:
        self._draw = draw

    async def token(self) -> str:
        """Return a token. Whatever prevents it is met as a broker that is away."""
        try:
            with of_others("it"):
                return await self._draw()
        except Exception as error:  # noqa: BLE001 - a caller's function may raise anything
            raise KafkaError(f"sasl_token: {reason_of(error)}") from None


_LENGTH: Final = struct.Struct(">i")
"""The length before a field of bytes in a request."""

_ASK_PAUSE_SECONDS: Final = 0.1
_ASK_PAUSE_PER_TOPIC: Final = 0.001
_ASK_PAUSE_SECONDS_MAX: Final = 0.2
"""Between two requests for the leaders of topics, at least: a thousand take 20 ms of both sides. At
most, since all that a producer sends waits for the leader of one topic."""

# -- making --------------------------------------------------------------------------------------


def make_consumer(
    config: KafkaConfig,
    role: str,
    *topics: str,
    **options: Any,  # noqa: ANN401 - those of aiokafka
) -> AIOKafkaConsumer:
    """Return a consumer, not started. `role` names it to brokers; `options` are those of aiokafka.

    Two of its own defaults lose records silently, and are others here: no offset is committed
    automatically, and an offset that is no longer in the log raises ("latest" skips what there is).
    """
    safe = {"enable_auto_commit": False, "auto_offset_reset": "none"}
    made = RecordConsumer(*topics, **connection_options(config, role), **{**safe, **options})
    return _with_ours(made, config)


def make_producer(
    config: KafkaConfig,
    role: str,
    *,
    replicas_ms: int | None = None,
    **options: Any,  # noqa: ANN401 - those of aiokafka
) -> AIOKafkaProducer:
    """Return a producer, not started, that waits for all replicas; otherwise as `make_consumer`.

    A broker answers for all partitions of a request at once, when their replicas have the records,
    or after `replicas_ms`; by default when the client gives up, too, and loses the whole answer.
    """
    options = {"acks": "all", **options}
    producer = _with_ours(AIOKafkaProducer(**connection_options(config, role), **options), config)
    copy_records_once(producer.client)
    if replicas_ms is not None:
        producer._sender._request_timeout_ms = replicas_ms  # it is only sent; 0.14 has no name
    return producer


class _Client(AIOKafkaClient):  # type: ignore[misc] # aiokafka has no types
    """Connections that never ask a broker to make a topic: a misspelt one must be missed. Each logs
    in by the password of now: a receiver has one client for months.

    aiokafka's own ask for that with each request about a topic, and brokers may be set to do so. It
    is its own code, with another request in it.
    """

    latest_password: Callable[[], str] | None = None

    @property
    def _sasl_plain_password(self) -> str | None:
        """Return the password for a connect: as its file has it now, else the last one."""
        if self.latest_password is not None:
            with suppress(SettingError):
                self.__dict__["_sasl_plain_password"] = self.latest_password()
        found: str | None = self.__dict__["_sasl_plain_password"]
        return found

    _asked = float("-inf")
    _ask_for_metadata = FunctionType(
        AIOKafkaClient._metadata_update.__code__,
        {
            **vars(aiokafka.client),
            "MetadataRequest": partial(MetadataRequest, allow_auto_topic_creation=False),
        },
    )

    async def _metadata_update(self, cluster: Any, topics: Any) -> Any:  # noqa: ANN401 - as above
        """Ask, after a pause: aiokafka asks over and over while one topic of many has no leader."""
        pause = len(topics or ()) * _ASK_PAUSE_PER_TOPIC
        pause = min(max(_ASK_PAUSE_SECONDS, pause), _ASK_PAUSE_SECONDS_MAX)
        await asyncio.sleep(max(0.0, self._asked + pause - asyncio.get_running_loop().time()))
        try:
            return await self._ask_for_metadata(cluster, topics)
        finally:
            self._asked = asyncio.get_running_loop().time()


def _with_ours(client: Any, config: KafkaConfig) -> Any:  # noqa: ANN401 - aiokafka has no types
    """Return a consumer, producer or admin client whose connections are a `_Client`'s."""
    connections = client.client if hasattr(client, "client") else client._client
    connections.__class__ = _Client
    if config.sasl_password_file:
        connections.latest_password = config.read_password
    return client


class _PlainProduce(ProduceRequest):  # type: ignore[misc] # aiokafka has no types
    """A request to store records, whose bytes are joined once.

    aiokafka's own joins them at each level of the request: field, partition, partitions, topic,
    topics, request. With aiokafka 0.14 a frame of 512 KiB takes 2.4 ms of CPU time that way, and
    0.05 ms this way; for 5,000 orders a sequencer and a receiver together take 9 ms.
    """

    def build(self, kind: type[Any]) -> Any:  # noqa: ANN401 - a request of aiokafka
        """Return the request in the version of `kind`."""
        request = super().build(kind)
        if len(request.topics) == 1 == len(request.topics[0][1]):
            # Weak: a request that holds itself keeps its records until a pass of the collector.
            request.encode = partial(_encoded, ref(request), kind.encode)
        return request


def _encoded(weak: ref[Any], encode: Callable[[Any], bytes]) -> bytes:
    """Return the bytes of a request for one partition: its records are the last field, after their
    length."""
    request = weak()
    if request is None:
        raise ReferenceError("the request is gone before it was encoded")
    topics = request.topics
    ((topic, ((partition, records),)),) = topics
    request.topics = [(topic, [(partition, b"")])]
    try:
        before = encode(request)[: -_LENGTH.size]
    finally:
        request.topics = topics
    return b"".join((before, _LENGTH.pack(len(records)), records))


def copy_records_once(client: Any) -> None:  # noqa: ANN401 - aiokafka has no types
    """Make what `client` sends a `_PlainProduce` where it is a request to store records."""
    send = client.send

    def send_plain(node_id: int, request: Any, **options: Any) -> Any:  # noqa: ANN401
        if type(request) is ProduceRequest:
            request.__class__ = _PlainProduce
        return send(node_id, request, **options)

    client.send = send_plain


def make_admin(
    config: KafkaConfig,
    role: str,
    **options: Any,  # noqa: ANN401 - those of aiokafka
) -> AIOKafkaAdminClient:
    """Return an admin client, not started; as `make_consumer`."""
    return _with_ours(AIOKafkaAdminClient(**connection_options(config, role), **options), config)


# -- reading -------------------------------------------------------------------------------------


async def find_unreadable(
    config: KafkaConfig, at: TopicPartition, offset: int, seconds: float, isolation_level: str
) -> tuple[UnreadableRecord | None, int]:
    """Return the record that cannot be read, if it is the next one from `offset` on, and the end.

    `isolation_level`: that of the reader which it stops, since `read_committed` skips what was
    aborted, and ends before what is open. Raises what aiokafka does, TimeoutError after `seconds`.
    """
    async with (
        asyncio.timeout(seconds),
        started(make_consumer(config, "look", isolation_level=isolation_level)) as consumer,
    ):
        consumer.assign([at])
        end: int = (await consumer.end_offsets([at]))[at]
        consumer.seek(at, offset)
        while await consumer.position(at) < end:
            try:
                if await consumer.getmany(at, timeout_ms=_LOOK_MS, max_records=1):
                    break
            except UnreadableRecord as error:
                return error, end
        return None, end
