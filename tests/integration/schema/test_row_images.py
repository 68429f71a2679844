"""The bytes that the kernel makes are the bytes that PostgreSQL reads and writes."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from orderchain.event import Event
from orderchain.limits import PAYLOAD_BYTES_MAX
from orderchain.roles import GAP_READER, SEQUENCER_WRITER
from orderchain.row_image import COLUMNS, COPY_HEADER, COPY_TRAILER, row_images

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    import asyncpg

    Connect = Callable[[str], Awaitable[asyncpg.Connection[Any]]]

EVENTS = [
    Event(1, 0, "A-1", 1_700_000_000_000_000_000, b"buy"),
    Event(2, 1, "Zürich \U0001f4b6", -(2**63), b""),
    Event(5, 2, "k" * 512, 2**63 - 1, bytes(range(256))),
    Event(299, 5, "'; DROP TABLE chain_event; --", 0, bytes(PAYLOAD_BYTES_MAX)),
]


async def test_row_images_go_in_by_copy_and_come_out_the_same(connect: Connect) -> None:
    writer, reader = await connect(SEQUENCER_WRITER), await connect(GAP_READER)
    copied = COPY_HEADER + row_images(1, EVENTS) + COPY_TRAILER
    await writer.copy_to_table(
        "chain_event", source=io.BytesIO(copied), columns=COLUMNS, format="binary"
    )
    rows = await reader.fetch(
        "SELECT id, pid, key, event_time_ns, payload FROM chain_event ORDER BY id"
    )
    assert [Event(*row) for row in rows] == EVENTS
    sink = io.BytesIO()
    query = "SELECT chain_id, id, pid, key, event_time_ns, payload FROM chain_event ORDER BY id"
    await reader.copy_from_query(query, output=sink, format="binary")
    assert sink.getvalue() == copied


async def test_columns_of_the_image_are_those_of_the_table(connect: Connect) -> None:
    superuser = await connect("postgres")
    query = """
        SELECT attname::text FROM pg_attribute
         WHERE attrelid = 'chain_event'::regclass AND attnum > 0 ORDER BY attnum
    """
    assert tuple(row[0] for row in await superuser.fetch(query)) == COLUMNS
