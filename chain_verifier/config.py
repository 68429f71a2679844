"""What is to be verified, and how. Imports no Spark: a command line reads it at every start."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta, Struct

from orderchain.errors import SettingError
from orderchain.limits import CHAIN_ID_MAX, ID_MAX

LEAF_BITS: Final = 12
"""A bucket of 2^12 ids is opened row by row; a wider one is split first. 4,096 rows cross to the
driver in milliseconds, and one row a bucket costs a scan nothing."""

BUCKETS_MAX: Final = 8192
"""Most buckets of a first scan: each is one row on the driver, which must stay small for any chain.
Holds while the span of ids is known; see `bucket_bits`."""

ROWS_OPENED_MAX: Final = 200_000
"""Most rows of damaged buckets brought to the driver. Beyond it the damage is named by range only:
nobody reads more findings than these rows give."""

FINDINGS_MAX: Final = 1_000
"""Most findings of one kind kept from one source; all are counted."""

FETCH_ROWS: Final = 10_000
"""Rows a JDBC round trip. Without it the driver would hold a whole partition in memory."""

CONNECTIONS_MAX: Final = 8
"""Most connections of one scan: an auditor must not crowd out the sequencer."""

CONNECT_TIMEOUT_S: Final = 10
"""How long a server may take to answer a connection."""

READ_TIMEOUT_S: Final = 300
"""How long a server may stay silent in the middle of a scan before it counts as gone."""


class DatabaseSource(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The chain in PostgreSQL: the truth, and the only source that knows the head by itself."""

    dsn: str
    """A libpq URL, `postgresql://user:password@host:port/database`; the role needs SELECT only."""
    name: str = "database"

    def __repr__(self) -> str:
        return f"DatabaseSource(name={self.name!r})"


class JournalSource(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a receiver wrote: JSON Lines, uncompressed, read by position and by content."""

    path: str
    """A file on a disk that the driver can read (with a remote master: every executor too)."""

    @property
    def name(self) -> str:
        """What the report calls it."""
        return f"journal:{self.path}"


class ParquetSource(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Rows in Parquet, a file or a folder, with the columns of `chain_event`."""

    path: str
    """A path, or a URL that Spark can read."""

    @property
    def name(self) -> str:
        """What the report calls it."""
        return f"parquet:{self.path}"


Source = DatabaseSource | JournalSource | ParquetSource


class VerifyRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One verification: a chain, where to read it, and between which ids."""

    chain_id: Annotated[int, Meta(ge=1, le=CHAIN_ID_MAX)]
    sources: tuple[Source, ...]
    """At least one. With two or more, each is also compared with the database, or with the first
    source where there is no database."""
    head: Annotated[int, Meta(ge=0, le=ID_MAX)] | None = None
    """The id that the chain is known to reach. Without it, and without a database among the
    sources, the end is taken from the data, which proves "contiguous" and not "complete"."""
    start: Annotated[int, Meta(ge=0, le=ID_MAX)] = 0
    """The id before the first row; rows up to it are not looked at. 0 is the genesis."""
    master: str | None = None
    """A Spark master URL; None runs Spark inside this process, on all cores."""
    bucket_bits: Annotated[int, Meta(ge=1, le=62)] | None = None
    """Buckets hold 2^bits ids; None chooses by the span of ids. Fewer bits name faults with fewer
    rows read twice, and send more rows to the driver."""
    leaf_bits: Annotated[int, Meta(ge=1, le=20)] = LEAF_BITS
    """A damaged bucket is split down to 2^bits ids before its rows are read."""


def parse_source(text: str, dsn: str | None) -> Source:
    """Return the source named as on the command line; `dsn` is the database's, if one is set.

    `database`, `journal:FILE` or `parquet:PATH`. Raises SettingError for anything else.
    """
    kind, colon, path = text.partition(":")
    if text == "database":
        if dsn is None:
            raise SettingError("database", None, "the URL of the database, to verify it")
        return DatabaseSource(dsn=dsn)
    if colon and path and kind == "journal":
        return JournalSource(path=path)
    if colon and path and kind == "parquet":
        return ParquetSource(path=path)
    if kind == "topic":
        raise SettingError("source", text, "a source that can be verified already; topics can not")
    raise SettingError("source", text, "database, journal:FILE or parquet:PATH")


def bucket_bits(span: int | None) -> int:
    """Return the bits of a bucket, so that a chain of `span` ids has at most `BUCKETS_MAX`."""
    if span is None:
        return LEAF_BITS
    return max(LEAF_BITS, (max(span, 1) // BUCKETS_MAX).bit_length())
