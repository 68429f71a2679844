"""The seal: a running SHA-256 over the committed batches of a chain (bytes: `docs/seal.md`)."""

from __future__ import annotations

from hashlib import sha256
from struct import Struct
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence
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
    content = sha256()
    for parts in zip(*(page.columns for page in pages), strict=True):
        for part in parts:
            content.update(part)
    return sha256(
        _BATCH.pack(
            previous,
            epoch,
            first_id,
            last_id,
            row_count,
            committed_at_us,
            content.digest(),
        )
    ).digest()
