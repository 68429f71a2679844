"""The seal: a running SHA-256 over the committed batches of a chain (bytes: `docs/seal.md`)."""

from __future__ import annotations

from hashlib import sha256
from struct import Struct
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from uuid import UUID

SEAL_BYTES: Final = 32
_DOMAIN: Final = b"orderchain seal 1\0"
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
    rows: bytes | bytearray | memoryview,
) -> bytes:
    """Return the seal after a batch, from the seal before it and all that is stored of it.

    `rows` are the row images of the batch (see `orderchain.row_image`), `committed_at_us` counts
    microseconds since 1970 UTC, as the sequencer set it.
    """
    return sha256(
        _BATCH.pack(
            previous,
            epoch,
            first_id,
            last_id,
            row_count,
            committed_at_us,
            sha256(rows).digest(),
        )
    ).digest()
