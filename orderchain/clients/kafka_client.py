"""The life of an aiokafka client: however it ends, it leaves no connection open.

aiokafka closes its connections as the last step of a `stop`. One that is cut off by a deadline, a
cancellation or an error never comes so far, nor does a `start` that is cut off while it asks its
first question; a process that goes on then keeps sockets, and a place in its group. Nothing here
imports aiokafka: clients are handed in.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

from orderchain.clients import abort

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

_log = logging.getLogger(__name__)

_GRACE_SECONDS: Final = 2.0
"""How long what was cut off may take to come to its own end."""

_leaving: set[asyncio.Task[None]] = set()
"""Ends that go on by themselves: a task that nobody holds may vanish. Few are under way at once."""


async def start_client(client: Any) -> None:  # noqa: ANN401 - aiokafka has no types
    """Start a consumer, a producer or an admin client; raises what its `start` raises.

    Under a cancellation (a deadline is one) the start gets up to 2 s to come to its end first:
    `close_client` can close only what the client knows of.
    """
    starting = asyncio.ensure_future(client.start())
    try:
        await asyncio.shield(starting)
    except asyncio.CancelledError:
        await asyncio.wait([starting], timeout=_GRACE_SECONDS)
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        raise


async def close_client(client: Any, within_seconds: float) -> None:  # noqa: ANN401 - as above
    """Stop a client, started or not, and never raise for what its `stop` raises.

    When `within_seconds` are over, or under a cancellation, its connections are closed at once.
    What it waited for fails then, so that it comes to its own end, for which it gets 2 s more.
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
    """Hold a client that is started, and close it however the block or the start ends.

    Raises what its `start` raises. `close_seconds`: as `within_seconds` of `close_client`.
    """
    try:
        await start_client(client)
        yield client
    finally:
        await close_client(client, close_seconds)


async def leave_client(client: Any, within_seconds: float) -> None:  # noqa: ANN401 - as above
    """Stop a producer; what takes longer than `within_seconds` goes on by itself.

    With the broker away a stop waits until the records have expired. Cut off, a producer would keep
    its sender and its records for good.
    """
    ending = asyncio.create_task(end_client(client), name="orderchain client end")
    _leaving.add(ending)
    ending.add_done_callback(_leaving.discard)
    await asyncio.wait([ending], timeout=within_seconds)


async def end_client(client: Any) -> None:  # noqa: ANN401 - as above
    """Stop a client however long it takes; never raise for what its `stop` raises.

    Cancelled, it closes the connections and raises CancelledError.
    """
    stop = client.stop if hasattr(client, "stop") else client.close
    stopping = asyncio.ensure_future(stop())
    try:
        # Not awaited itself: a stop may raise a CancelledError that nobody asked for.
        await asyncio.wait([stopping])
    finally:
        stopping.cancel()
        _cut(client)
    if not stopping.cancelled() and (error := stopping.exception()) is not None:
        _log.debug("a client of Kafka did not stop in order: %r", error)


def _cut(client: Any) -> None:  # noqa: ANN401 - as above
    """Close every connection, and the task that would open others. Repeats do no harm."""
    # A producer names it in public, consumers and admin clients do not.
    connections = client.client if hasattr(client, "client") else client._client
    if connections._sync_task is not None:
        connections._sync_task.cancel()
    for connection in list(connections._conns.values()):
        cut_connection(connection)


def cut_connection(connection: Any) -> None:  # noqa: ANN401 - as above
    """Close one connection of aiokafka at once. Repeats do no harm.

    Its own `close` says goodbye where it speaks TLS, and waits half a minute for an answer, which
    a broker that is frozen never gives.
    """
    connection.close()
    transport = getattr(connection._protocol, "_transport", None)  # None once it is closed
    if transport is not None:
        abort(transport)
