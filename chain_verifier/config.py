"""Settings of a verification, and what is refused at once. Imports no Spark.

A command line reads this at every start. It reads no source.
"""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
from msgspec import Meta, Struct

from chain_kernel.clients.database_config import DatabaseConfig
from chain_kernel.clients.kafka_config import KafkaConfig
from chain_kernel.config import Config
from chain_kernel.errors import InputError, SettingError
from chain_kernel.limits import CHAIN_ID_MAX, ID_MAX
from chain_kernel.seal import SEAL_BYTES
from chain_kernel.text import reason_of
from chain_verifier.places import checked_url, is_url, open_to_read, place_of

if TYPE_CHECKING:
    from collections.abc import Sequence


LEAF_BITS: Final = 12
"""A bucket of 2^12 ids is opened row by row; a wider one is split first. 4,096 rows cross to the
driver in milliseconds, and one row per bucket costs a scan nothing."""

BUCKETS_MAX: Final = 8192
"""Maximum number of buckets in a first scan: each is one row on the driver, which must stay small
for any chain. Holds while the span of ids is known; see `bucket_bits`."""

ROWS_OPENED_MAX: Final = 200_000
"""Maximum number of rows of damaged buckets that are brought to the driver. Beyond it, damage is
named by range only: more findings than these rows give are never read."""

FINDINGS_MAX: Final = 1_000
"""Maximum number of findings of one kind that are kept from one source; all are counted."""

FETCH_ROWS: Final = 1_000
"""Rows per round trip of a worker, each maybe of a page that the server has looked at: a round trip
ends well within `READ_TIMEOUT_S`, and no worker holds a whole partition."""

FETCH_PAGES: Final = 16
"""Pages, or batches with all that is stored of them, per round trip; large ones are 10 MB."""

CONNECTIONS_MAX: Final = 8
"""Maximum number of connections per scan: an auditor must not crowd out the sequencer."""

CONNECT_SECONDS: Final = 10.0
"""Seconds that a server may take to answer a connection, unless the caller says otherwise."""

READ_TIMEOUT_S: Final = 300
"""Seconds that a server may stay silent in the middle of a scan before it counts as gone."""

ConnectSeconds = Annotated[float, Meta(gt=0, le=3600)]


class DatabaseSource(Config, frozen=True, kw_only=True, tag=True):
    """The chain in PostgreSQL: the truth, and the only source that knows the head by itself."""

    database: str | DatabaseConfig
    """A DatabaseConfig, or a libpq URL; the role needs SELECT only."""
    name: str = "database"
    connect_seconds: ConnectSeconds = CONNECT_SECONDS
    """Seconds that the server may take to answer a connection."""

    def __repr__(self) -> str:
        return f"DatabaseSource(name={self.name!r})"


class JournalSource(Config, frozen=True, kw_only=True, tag=True):
    """A journal of a receiver: JSON Lines, uncompressed, read by position and by content."""

    path: Annotated[str, Meta(min_length=1)]
    """A file, or a URL, that the driver can read (with a remote master: every executor too)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_place(self.path)

    @property
    def name(self) -> str:
        """Its name in the report."""
        return f"journal:{self.path}"


class ParquetSource(Config, frozen=True, kw_only=True, tag=True):
    """Rows in Parquet, a file or a folder, with the columns of `chain_event`."""

    path: Annotated[str, Meta(min_length=1)]
    """A path, or a URL that Spark can read."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_place(self.path)

    @property
    def name(self) -> str:
        """Its name in the report."""
        return f"parquet:{self.path}"


def _check_place(path: str) -> None:
    if is_url(path):
        checked_url("source", path)


class TopicSource(Config, frozen=True, kw_only=True, tag=True):
    """The published records of a chain: frames on Kafka, up to the last offset at the start."""

    kafka: str | KafkaConfig
    """A KafkaConfig, or the plaintext bootstrap servers, `host:port,host:port`."""
    topic: str | None = None
    """None: the database names it, if it is among the sources; else it has the default name."""
    connect_seconds: ConnectSeconds = CONNECT_SECONDS
    """Seconds that a broker may take to answer a connection or a request."""

    @property
    def name(self) -> str:
        """Its name in the report."""
        return "topic" if self.topic is None else f"topic:{self.topic}"


Source = DatabaseSource | TopicSource | JournalSource | ParquetSource


class KeptSeal(Config, frozen=True, kw_only=True):
    """An exported seal, kept where those who write to the database cannot reach it."""

    id: Annotated[int, Meta(ge=0, le=ID_MAX)]
    """The last id of the batch that it seals."""
    seal: Annotated[bytes, Meta(min_length=SEAL_BYTES, max_length=SEAL_BYTES)]
    committed_at: str | None = None
    """When that row was committed, as the export says; None where only the seal was kept."""
    exported_at: str | None = None
    """When it was exported, by the exporting machine's clock."""


class ContradictedMark(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The first verified mark of a chain whose rows are no longer those that were verified."""

    mark_id: int
    after_id: int
    """Up to here the verification still holds: the last mark before, or the archived rows."""
    until_id: int
    seal: bytes
    """The seal after that row when it was verified."""
    found: bytes | None
    """The seal that is there now; None if no batch ends there."""
    verified_by: str
    verified_at: datetime
    count: int
    """Number of marks that are contradicted, this one and later ones."""


class VerifyRequest(Config, frozen=True, kw_only=True):
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
    """A Spark master URL, or that of a server of Spark Connect (`sc://HOST:PORT`); None runs Spark
    inside this process, on all cores."""
    seals: bool = False
    """True if the seals of the database are recomputed, which reads every column of every row."""
    kept_seals: tuple[KeptSeal, ...] = ()
    """Checked against the database; imply `seals`: a seal alone says nothing about the rows."""
    contradicted_mark: ContradictedMark | None = None
    """Found in the database, by `chain_verifier.verified_mark`; implies `seals`, since a difference
    may show only in them."""
    key_window_rows: Annotated[int, Meta(ge=1)] | None = None
    """The sequencer's setting of this name: within this many rows, no two may have the same key; a
    client's number must not repeat anywhere. None: keys are not compared. Comparing them takes a
    separate pass."""
    findings_folder: str | None = None
    """Folder to which all findings are written, as Parquet and as JSON; a report keeps a sample."""
    bucket_bits: Annotated[int, Meta(ge=1, le=62)] | None = None
    """Buckets hold 2^bits ids; None chooses by the span of ids. With fewer bits, fewer rows are
    read twice to name faults, and more rows are sent to the driver."""
    leaf_bits: Annotated[int, Meta(ge=1, le=20)] = LEAF_BITS
    """A damaged bucket is split down to 2^bits ids before its rows are read."""

    @property
    def checks_seals(self) -> bool:
        """True if seals are recomputed."""
        return self.seals or bool(self.kept_seals) or self.contradicted_mark is not None


def parse_source(
    text: str,
    database: str | DatabaseConfig | None,
    kafka: str | KafkaConfig | None = None,
    connect_seconds: float = CONNECT_SECONDS,
) -> Source:
    """Return the source named as on the command line; `database` is where the chain is, if set.

    `database`, `topic`, `topic:NAME`, `journal:FILE` or `parquet:PATH`; `kafka` is where topics
    are. A server may take `connect_seconds` to answer. Raises SettingError for anything else.
    """
    kind, colon, path = text.partition(":")
    if text == "database":
        if database is None:
            raise SettingError("database", None, "the URL of the database, to verify it")
        return DatabaseSource(database=database, connect_seconds=connect_seconds)
    if kind == "topic" and bool(colon) == bool(path):
        if kafka is None:
            raise SettingError("kafka", None, "the bootstrap servers, to verify a topic")
        return TopicSource(kafka=kafka, topic=path or None, connect_seconds=connect_seconds)
    if colon and path and kind == "journal":
        return JournalSource(path=path)
    if colon and path and kind == "parquet":
        return ParquetSource(path=path)
    raise SettingError("source", text, "database, topic, topic:NAME, journal:FILE or parquet:PATH")


def parse_kept_seal(text: str) -> KeptSeal:
    """Return the seal written as `ID:SEAL`, the seal in hexadecimal. Raises SettingError."""
    row_id, _, seal = text.strip().partition(":")
    try:
        return msgspec.convert({"id": int(row_id), "seal": bytes.fromhex(seal)}, KeptSeal)
    except ValueError:  # msgspec's too
        expected = "ID:SEAL as seal export prints it, the seal as 64 hexadecimal digits"
        raise SettingError("expect-seal", text, expected) from None


def bucket_bits(span: int | None) -> int:
    """Return the bits of a bucket, so that `span` ids have at most `BUCKETS_MAX` buckets."""
    if span is None:
        return LEAF_BITS
    return max(LEAF_BITS, (max(span, 1) // BUCKETS_MAX).bit_length())


_PATTERN: Final = re.compile(r"[\\*?\[\]{}]")


def inside(folder: str, name: str) -> str:
    """Return the path of `name` in a folder or URL."""
    return f"{folder.rstrip('/')}/{name}"


def literal_path(path: str) -> str:
    """Return `path` escaped for a reader of Spark, which takes it for a pattern."""
    return _PATTERN.sub(r"\\\g<0>", path)


def local_folder(option: str, text: str) -> Path:
    """Return a folder of this machine. Raises SettingError for a URL, naming the `option`."""
    place = place_of(option, text) if text.startswith("file:") else Path(text)
    if is_url(str(place)) or not isinstance(place, Path):
        raise SettingError(option, text, "a folder of this machine, not a URL")
    return place


def require_sound(requests: Sequence[VerifyRequest]) -> None:
    """Raise SettingError for sources that do not fit together, InputError for a file that cannot
    be read, or a folder of findings that is not empty.
    """
    for request in requests:
        _require_distinct(request)
        is_database = any(isinstance(source, DatabaseSource) for source in request.sources)
        if request.checks_seals and not is_database:
            raise SettingError("source", None, "the database, whose seals are to be checked")
        for source in request.sources:
            if isinstance(source, JournalSource):
                require_readable(source)
            elif isinstance(source, ParquetSource):
                path = Path(source.path)  # it may be a URL: then there is no such file
                if path.exists() and not path.is_file() and not path.is_dir():
                    raise InputError("parquet", source.path, "a regular file, or a folder")
    for folder in {request.findings_folder for request in requests}:
        if folder is None:
            continue
        if is_url(folder):
            checked_url("findings", folder)
        else:
            _require_free(Path(folder))


def require_readable(source: JournalSource) -> None:
    """Raise InputError unless there is a file that can be read."""
    try:
        open_to_read(place_of("journal", source.path)).close()
    except OSError as error:
        reason = error.strerror or reason_of(error)
        raise InputError("journal", source.path, f"a readable file ({reason})") from error


def _require_distinct(request: VerifyRequest) -> None:
    names = [source.name for source in request.sources]
    if not names:
        raise SettingError("source", None, "at least one source")
    for name in names:
        if names.count(name) > 1:
            raise SettingError("source", name, "each source once")


def _require_free(folder: Path) -> None:
    """Require an empty folder: findings of another run would look like those of this one."""
    try:
        is_free = not folder.exists() or not any(folder.iterdir())
    except OSError as error:
        raise InputError("findings", str(folder), f"an empty folder ({error.strerror})") from error
    if not is_free:
        raise InputError("findings", str(folder), "an empty folder, or one that does not exist")
