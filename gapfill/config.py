"""The settings of the gap reader, as a value."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from chain_kernel.clients.database_config import DatabaseConfig
from chain_kernel.config import Config
from chain_kernel.limits import CHAIN_ID_MAX

Seconds = Annotated[float, Meta(gt=0, le=3600)]


class GapReaderConfig(Config, frozen=True, kw_only=True):
    """The source of one chain's missing rows, and the limits of reading it."""

    database: str | DatabaseConfig
    """A DatabaseConfig, or a libpq URL; the role `gap_reader` is enough."""
    chain_id: Annotated[int, Meta(ge=1, le=CHAIN_ID_MAX)]
    page_rows: Annotated[int, Meta(ge=1, le=100_000)] = 5_000
    """Rows per read, and the rest of the stored page that holds the last of them. At most two such
    reads are in memory: the caller's and the next. Rows of a batch wait for its proof. Rows of a
    batch that has more rows than this do not wait, and their columns are kept to its end."""
    page_bytes: Annotated[int, Meta(ge=1, le=256 * 1024 * 1024)] = 8 * 1024 * 1024
    """Bytes of keys and payloads after which a read ends early, with the stored page it is in."""
    connect_seconds: Seconds = 5.0
    """Deadline of a connect."""
    statement_seconds: Seconds = 10.0
    """Deadline of a statement; the caller retries a page that takes longer."""
    busy_seconds: Seconds = 60.0
    """Time to wait and retry while the role has no connection left: hundreds of receivers that
    start at once take turns."""
    linger_seconds: Annotated[float, Meta(ge=0, le=60)] = 2.0
    """Time that a connection is kept after the last read. Many receivers share the few connections
    of the role: a longer time starves them, 0 costs a login per gap, or without a broker per
    order."""
    close_seconds: Seconds = 2.0
    """Deadline of closing a connection; after it the socket is cut."""

    def __repr__(self) -> str:
        return f"GapReaderConfig({DatabaseConfig.of(self.database).shown}, chain {self.chain_id})"
