"""Batches that a topic, a journal or an archive has of a chain, read once from its beginning."""

from __future__ import annotations

from bisect import bisect_left
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Protocol

from msgspec import Meta

from chain_kernel.clock import record_time
from chain_kernel.config import Config
from chain_kernel.errors import InputError, SettingError
from chain_verifier.archive.manifest import chain_folder, load_manifest
from chain_verifier.archive.part_files import BrokenPart, proven_batches
from chain_verifier.checks.published import place_of
from chain_verifier.checks.seals import SealRun
from chain_verifier.checks.topic_frames import SIGNED, UNKNOWN_TERM, FrameKeys, events_of, header_of
from chain_verifier.config import CONNECT_SECONDS, JournalSource, TopicSource, parse_source
from chain_verifier.journal_rows import JournalRows
from chain_verifier.published_reader import PublishedReader, PublishedRecord
from chain_verifier.repair.matching import ROWS_ALONE, UNKNOWN_SENDER, Offer, SourceMatching

if TYPE_CHECKING:
    from collections.abc import Iterator

    from chain_kernel.clients.kafka_config import KafkaConfig
    from chain_kernel.frame import FrameHeader
    from chain_verifier.archive.manifest import ArchivePart
    from chain_verifier.checks.seals import ArchivedRow
    from chain_verifier.database_facts import DatabaseHead

_PENDING_MAX: Final = 64
"""Batches of a topic of which not all slices were seen. A leader sends the slices of a batch one
after the other; a second leader may send others in between."""


class ArchiveSource(Config, frozen=True, kw_only=True, tag=True):
    """Verified rows as `chainctl archive` writes them, with all that is stored of their batches."""

    path: Annotated[str, Meta(min_length=1)]
    """The folder of the archive."""

    @property
    def name(self) -> str:
        """What the plan calls it."""
        return f"archive:{self.path}"


RepairSource = TopicSource | JournalSource | ArchiveSource


def parse_repair_source(
    text: str, kafka: str | KafkaConfig | None, connect_seconds: float = CONNECT_SECONDS
) -> RepairSource:
    """Return the source named as on the command line.

    `topic`, `topic:NAME`, `journal:FILE` or `archive:DIR`; `kafka` is where topics are. Raises
    SettingError for anything else.
    """
    kind, _, path = text.partition(":")
    if kind == "archive" and path:
        return ArchiveSource(path=path)
    if kind == "topic" or (kind == "journal" and path):
        source = parse_source(text, None, kafka, connect_seconds)
        if isinstance(source, TopicSource | JournalSource):
            return source
    raise SettingError("--from", text, "topic, topic:NAME, journal:FILE or archive:DIR")


class Offers(Protocol):
    """One source, opened. What is added to it later is left out."""

    def batches(self, matching: SourceMatching, keys: FrameKeys) -> Iterator[Offer]:
        """Yield the batches that `matching` wants. Raises SourceBroken or InputError."""
        ...

    def notes(self) -> tuple[str, ...]:
        """Return what should be known of the source, once it was read."""
        ...

    def close(self) -> None:
        """Close it; never raises."""
        ...


def open_offers(
    source: RepairSource, chain_id: int, head: DatabaseHead, *, has_kept: bool
) -> Offers:
    """Open a source. With a kept seal, frames of unknown terms count, too.

    Raises ConnectError, RetryError, TopicError or InputError.
    """
    if isinstance(source, TopicSource):
        return _TopicOffers(source, chain_id, head, has_kept=has_kept)
    if isinstance(source, JournalSource):
        return _JournalOffers(source, chain_id)
    return _ArchiveOffers(source, chain_id, head.database_id)


class _Slices:
    """The slices of one batch that were seen so far, one after the other."""

    def __init__(self, header: FrameHeader, record: PublishedRecord, *, is_signed: bool) -> None:
        self._header = header
        self._sent_at = record_time(record.time_ms)
        self._is_signed = is_signed
        self._rows: list[ArchivedRow] = []

    def is_next(self, header: FrameHeader) -> bool:
        """Return whether a slice goes on where the last one ended."""
        return bool(self._rows) and self._rows[-1][0] == header.first_pid

    def add(self, record: PublishedRecord) -> None:
        """Add the rows of a slice."""
        self._rows += (
            (event.id, event.pid, event.key, event.event_time_ns, event.payload)
            for event in events_of(record.value, self._header.chain_id)
        )

    def offer(self, seal: bytes) -> Offer:
        """Return the whole batch, whose last slice has brought `seal`."""
        return Offer(
            rows=self._rows,
            epoch=self._header.epoch,
            seal_before=self._header.seal_before,
            seal=seal,
            sent_at=self._sent_at,
            is_signed=self._is_signed,
        )


class _TopicOffers:
    """Batches put together from frames.

    A frame that is not signed with the key of the term that it names is never used. One of a term
    that the database does not know, since a restore has lost it, counts only up to a kept seal.
    """

    def __init__(
        self, source: TopicSource, chain_id: int, head: DatabaseHead, *, has_kept: bool
    ) -> None:
        self._chain_id = chain_id
        self._has_kept = has_kept
        topic, partition = place_of(source, chain_id, head)
        self._reader = PublishedReader(source, topic, partition)

    def batches(self, matching: SourceMatching, keys: FrameKeys) -> Iterator[Offer]:
        pending: dict[tuple[bytes, int, bool], _Slices] = {}
        for page in self._reader.pages():
            for record in page:
                found = self._wanted(record, matching, keys)
                if found is None:
                    continue
                header, is_signed = found
                key = (header.seal_before, header.epoch, is_signed)
                slices = pending.pop(key, None)
                if slices is None or not slices.is_next(header):
                    slices = _Slices(header, record, is_signed=is_signed)
                slices.add(record)
                if header.is_batch_end:
                    yield slices.offer(header.seal_after)
                    continue
                pending[key] = slices
                if len(pending) > _PENDING_MAX:
                    del pending[next(iter(pending))]

    def _wanted(
        self, record: PublishedRecord, matching: SourceMatching, keys: FrameKeys
    ) -> tuple[FrameHeader, bool] | None:
        """Return the header of a frame whose rows are wanted, and whether a known leader signed it.

        None for all others.
        """
        header = header_of(record.value, self._chain_id)
        if isinstance(header, str) or header.is_heartbeat:
            return None
        if not matching.wants(header.first_pid, header.last_id):
            return None
        sender = keys.sender_of(record.value or b"", header)
        if sender == UNKNOWN_TERM and not self._has_kept:
            matching.disown(header.first_pid, header.last_id, UNKNOWN_SENDER)
        if sender == SIGNED or (sender == UNKNOWN_TERM and self._has_kept):
            return header, sender == SIGNED
        return None

    def notes(self) -> tuple[str, ...]:
        if not self._reader.bounds.first:
            return ()
        return ("retention has removed the first records of the topic",)

    def close(self) -> None:
        self._reader.close()


class _JournalOffers:
    """Rows of a journal, gathered for the batches whose entries the database still has."""

    def __init__(self, source: JournalSource, chain_id: int) -> None:
        self._table = JournalRows(source)
        self._chain_id = chain_id

    def batches(self, matching: SourceMatching, keys: FrameKeys) -> Iterator[Offer]:
        ranges = matching.ranges()
        starts = [after_id for after_id, _ in ranges]
        gathered: dict[int, list[ArchivedRow]] = {}
        last_id = 0
        for row in self._rows():
            last_id = max(last_id, row[0])
            at = bisect_left(starts, row[0]) - 1
            if at < 0 or row[0] > ranges[at][1]:
                continue
            rows = gathered.setdefault(at, [])
            if rows and row[0] <= rows[-1][0]:
                rows.clear()
            rows.append(row)
            if row[0] == ranges[at][1]:
                yield Offer(rows=gathered.pop(at))
        matching.disown(matching.head.id, last_id, ROWS_ALONE)

    def _rows(self) -> Iterator[ArchivedRow]:
        for page in self._table.pages():
            for chain_id, *row in page:
                if chain_id == self._chain_id and None not in row:
                    values: Any = tuple(row)
                    yield values

    def notes(self) -> tuple[str, ...]:
        return self._table.notes()

    def close(self) -> None:
        pass


class _ArchiveOffers:
    """Batches of an archive, each checked against the links and seals of its part."""

    def __init__(self, source: ArchiveSource, chain_id: int, database_id: str) -> None:
        archive = Path(source.path)
        manifest = load_manifest(archive, chain_id)
        if manifest is None:
            raise InputError("archive", source.path, f"an archive that holds chain {chain_id}")
        if manifest.database_id != database_id:
            raise InputError("archive of database", manifest.database_id, database_id)
        self._manifest = manifest
        self._folder = chain_folder(archive, chain_id)
        self._broken: dict[str, None] = {}

    def batches(self, matching: SourceMatching, keys: FrameKeys) -> Iterator[Offer]:
        for part in self._manifest.parts:
            if matching.wants(part.after_id, part.last_id):
                yield from self._of(part, matching)

    def _of(self, part: ArchivePart, matching: SourceMatching) -> Iterator[Offer]:
        """Yield what is whole of a part: what was read before a fault was checked, too."""
        run = SealRun(self._manifest.chain_id, part.after_id, bytes.fromhex(part.seal_before))
        before = run.seal
        try:
            for batch, rows in proven_batches(self._folder, part, run):
                if matching.wants(batch.prev_last_id, batch.last_id):
                    yield Offer(
                        rows=rows,
                        epoch=batch.epoch,
                        seal_before=before,
                        seal=batch.seal,
                        committed_at=batch.committed_at,
                    )
                before = batch.seal
        except BrokenPart as error:
            self._broken[f"the archive is broken: {error}"] = None

    def notes(self) -> tuple[str, ...]:
        return tuple(self._broken)

    def close(self) -> None:
        pass
