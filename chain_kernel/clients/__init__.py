"""The only package that opens a connection to PostgreSQL or Kafka, or imports a driver.

The configs (`kafka_config`, `database_config`) are pure and import no driver, so that reading
settings does not import one. `kafka`, `postgres` and `session` open connections.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio


def abort(transport: asyncio.BaseTransport) -> None:
    """End a connection at once, whatever is still to be sent. Repeats do no harm."""
    # For a TLS connection that has ended already, Python 3.11.2 has forgotten the protocol.
    with suppress(AttributeError):
        transport.abort()  # type: ignore[attr-defined]
