"""The seal: a running SHA-256 over the committed batches of a chain (bytes: `docs/seal.md`)."""

from __future__ import annotations

from hashlib import sha256
from struct import Struct
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from uuid import UUID

    from orderchain.page_image import PageImage

SEAL_BYTES: Final = 32
_DOMAIN: Final = b"orderchain seal 2\0"
_GENESIS: Final = Struct(">16sq")
_BATCH: Final = Struct(">32sqqqqq32s")


def genesis_seal(database_id: UUID, chain_id: int) -> bytes:
    """Return seal_0 of a chain: bound to its database, so that no two databases share a seal."""
    return sha256(_DOMAIN + _GENESIS.pack(database_id.bytes, chain_id)).digest()


def next_seal(
    previous: bytes,
    *,
    epoch: int,
    first_id: int,
    last_id: int,
    row_count: int,
    committed_at_us: int,
    pages: Sequence[PageImage],
) -> bytes:
    """Return the seal after a batch, from the seal before it and all that is stored of it.

    `pages` hold the rows of the batch, in order; where one page ends and the next begins makes no
    difference: a column is covered whole, then the next. `committed_at_us` counts microseconds
    since 1970 UTC, as the sequencer set it.
    """
    columns = zip(*(page.columns for page in pages), strict=True)
    return seal_over(
        previous,
        epoch=epoch,
        first_id=first_id,
        last_id=last_id,
        row_count=row_count,
        committed_at_us=committed_at_us,
        content=content_of(part for parts in columns for part in parts),
    )


def content_of(parts: Iterable[bytes]) -> bytes:
    """Return the digest of a batch's content: the images of its columns, in parts of any length."""
    content = sha256()
    for part in parts:
        content.update(part)
    return content.digest()


def seal_over(
    previous: bytes,
    *,
    epoch: int,
    first_id: int,
    last_id: int,
    row_count: int,
    committed_at_us: int,
    content: bytes,
) -> bytes:
    """Return the same where the digest of the content is known."""
    fields = (previous, epoch, first_id, last_id, row_count, committed_at_us, content)
    return sha256(_BATCH.pack(*fields)).digest()
