"""Hard bounds of the protocol. Each has a reason; settings may only be stricter."""

from __future__ import annotations

from typing import Final

ID_MAX: Final = 2**63 - 1
"""The largest id: PostgreSQL's bigint. At 10^9 orders per second it lasts 292 years."""

CHAIN_ID_MAX: Final = 2**31 - 1
"""The largest chain id: PostgreSQL's integer."""

KEY_BYTES_MAX: Final = 512
"""A key is an identifier, not a document; an index entry must stay far below a third of a page."""

PAYLOAD_BYTES_MAX: Final = 256 * 1024
"""One row must fit into one frame, together with its key and the header."""

FRAME_BYTES_MIN: Final = PAYLOAD_BYTES_MAX + 4 * 1024
"""The smallest `frame_bytes_max`: below it the largest legal row would not fit into a frame."""

FRAME_BYTES_MAX: Final = 8 * 1024 * 1024
"""The largest record that a receiver reads. A larger one is refused unread: 50 MB of small ints
decode into 443 MB of objects (measured), so the size is capped before anything is decoded."""

FRAME_ROWS_MAX: Final = 65_536
"""Rows in one frame. It bounds what a decoded frame may cost a receiver in objects."""

BATCH_ROWS_MAX: Final = 100_000
"""Rows in one commit. A larger one would hold the chain's head row for seconds."""

COMMIT_SECONDS_MAX: Final = 60.0
"""The longest commit deadline that may be set: longer than any healthy disk takes, and short
enough that a standby is not kept out for minutes by a leader that hangs."""
