"""The bytes that the kernel makes are the bytes that PostgreSQL reads and writes."""

import io

from chain_kernel.limits import PAYLOAD_BYTES_MAX
from chain_kernel.model import Event
from chain_kernel.seal import COLUMNS, COPY_HEADER, COPY_TRAILER, event_pages
from chain_kernel.sql import GAP_READER, SEQUENCER_WRITER

from .conftest import Connect

EVENTS = [
    Event(1, 0, "A-1", 1_700_000_000_000_000_000, b"buy"),
    Event(2, 1, "Zürich \U0001f4b6", -(2**63), b""),
    Event(5, 2, "k" * 512, 2**63 - 1, bytes(range(256))),
    *(Event(n, n - 1 if n > 6 else 5, f"K-{n}", n, bytes(PAYLOAD_BYTES_MAX)) for n in range(6, 12)),
    Event(299, 11, "'; DROP TABLE chain_page; --", 0, b"last"),
]


async def test_page_images_go_in_by_copy_and_come_out_the_same(connect: Connect) -> None:
    writer, reader = await connect(SEQUENCER_WRITER), await connect(GAP_READER)
    pages = event_pages(EVENTS)
    assert len(pages) > 1
    tuples = b"".join(piece for page in pages for piece in page.copied(1))
    copied = COPY_HEADER + tuples + COPY_TRAILER
    await writer.copy_to_table(
        "chain_page", source=io.BytesIO(copied), columns=COLUMNS, format="binary"
    )
    rows = await reader.fetch(
        "SELECT id, pid, key, event_time_ns, payload FROM chain_event ORDER BY id"
    )
    assert [Event(*row) for row in rows] == EVENTS
    sink = io.BytesIO()
    query = f"SELECT {', '.join(COLUMNS)} FROM chain_page ORDER BY last_id"  # noqa: S608
    await reader.copy_from_query(query, output=sink, format="binary")
    assert sink.getvalue() == copied
