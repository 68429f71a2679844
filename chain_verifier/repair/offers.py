"""Batches that a topic, a journal or an archive has of a chain, read once from its beginning."""

from __future__ import annotations

from bisect import bisect_left
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any, Final

from msgspec import Meta
from msgspec.structs import astuple

from chain_kernel.clock import record_time
from chain_kernel.config import Config
from chain_kernel.errors import InputError, SettingError
from chain_verifier import places
from chain_verifier.archive.manifest import chain_folder, held_manifest
from chain_verifier.archive.part_files import BrokenPart, proven_parts
from chain_verifier.checks.published import place_of
from chain_verifier.checks.topic_frames import SIGNED, UNKNOWN_TERM, events_of, header_of
from chain_verifier.config import CONNECT_SECONDS, JournalSource, TopicSource, parse_source
from chain_verifier.repair.matching import ROWS_ALONE, UNKNOWN_SENDER, Offer, SourceMatching
from chain_verifier.sources.journal import JournalRows
from chain_verifier.sources.published_reader import PublishedReader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import ExitStack

    from chain_kernel.clients.kafka_config import KafkaConfig
    from chain_verifier.archive.manifest import Manifest
    from chain_verifier.checks.seals import ArchivedRow
    from chain_verifier.checks.topic_frames import FrameKeys
    from chain_verifier.database_facts import DatabaseHead
    from chain_verifier.places import Place

    Offers = Callable[[SourceMatching, FrameKeys], Iterator[Offer]]
    """Reads the batches that are wanted of a source. Raises SourceBroken or InputError."""

_PENDING_MAX: Final = 64
"""Batches of a topic of which not all slices were seen. A leader sends the slices of a batch one
after the other; a second leader may send others in between."""


class ArchiveSource(Config, frozen=True, kw_only=True, tag=True):
    """Verified rows as `chainctl archive` writes them, with all that is stored of their batches."""

    path: Annotated[str, Meta(min_length=1)]
    """The folder of the archive."""

    @property
    def name(self) -> str:
        """Its name in the plan."""
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


def open_offers(
    source: RepairSource, chain_id: int, head: DatabaseHead, opened: ExitStack, *, has_kept: bool
) -> Offers:
    """Open a source until `opened` ends; what is added to it later is left out. With a kept seal,
    frames of unknown terms count, too.

    Raises ConnectError, RetryError, TopicError or InputError.
    """
    if isinstance(source, TopicSource):
        reader = PublishedReader(source, *place_of(source, chain_id, head))
        opened.callback(reader.close)
        return partial(_of_topic, reader, chain_id, has_kept)
    if isinstance(source, JournalSource):
        return partial(_of_journal, JournalRows(source), chain_id)
    archive = places.place_of("--from", source.path)
    manifest = held_manifest(archive, chain_id)
    if manifest.database_id != head.database_id:
        raise InputError("archive of database", manifest.database_id, head.database_id)
    return partial(_of_archive, chain_folder(archive, chain_id), manifest)


def _of_topic(
    reader: PublishedReader,
    chain_id: int,
    has_kept: bool,
    matching: SourceMatching,
    keys: FrameKeys,
) -> Iterator[Offer]:
    """Yield batches put together from frames.

    A frame that is not signed with the key of the term that it names is never used. One of a term
    that the database does not know, since a restore has lost it, counts only up to a kept seal.
    """
    if reader.bounds.first:
        matching.notes.append("retention has removed the first records of the topic")
    pending: dict[tuple[bytes, int, str], tuple[list[ArchivedRow], int]] = {}
    for record in chain.from_iterable(reader.pages()):
        header = header_of(record.value, chain_id)
        if isinstance(header, str) or header.is_heartbeat:
            continue
        if not matching.wants(header.first_pid, header.last_id):
            continue
        sender = keys.sender_of(record.value or b"", header)
        if sender == UNKNOWN_TERM and not has_kept:
            matching.disown(header.first_pid, header.last_id, UNKNOWN_SENDER)
        elif sender in (SIGNED, UNKNOWN_TERM):
            batch = (header.seal_before, header.epoch, sender)
            rows, time_ms = pending.pop(batch, ([], 0))
            if not rows or rows[-1][0] != header.first_pid:
                rows, time_ms = [], record.time_ms
            rows += map(astuple, events_of(record.value, chain_id))
            if header.is_batch_end:
                yield Offer(
                    rows=rows,
                    epoch=header.epoch,
                    seal_before=header.seal_before,
                    seal=header.seal_after,
                    sent_at=record_time(time_ms),
                    is_signed=sender == SIGNED,
                )
                continue
            pending[batch] = (rows, time_ms)
            if len(pending) > _PENDING_MAX:
                del pending[next(iter(pending))]


def _of_journal(
    table: JournalRows, chain_id: int, matching: SourceMatching, keys: FrameKeys
) -> Iterator[Offer]:
    """Yield rows gathered for the batches whose entries the database still has."""
    ranges = matching.ranges()
    starts = [after_id for after_id, _ in ranges]
    gathered: dict[int, list[ArchivedRow]] = {}
    last_id = 0
    for of_chain, *values in chain.from_iterable(table.pages()):
        if of_chain != chain_id or None in values:
            continue
        row: Any = tuple(values)
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
    matching.notes += table.notes()


def _of_archive(
    folder: Place, manifest: Manifest, matching: SourceMatching, keys: FrameKeys
) -> Iterator[Offer]:
    """Yield what is whole of an archive, each batch checked against its links and seals."""
    for part in manifest.parts:
        if not matching.wants(part.after_id, part.last_id):
            continue
        before = bytes.fromhex(part.seal_before)
        try:
            for batch, rows in proven_parts(folder, manifest.chain_id, [part]):
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
            matching.notes.append(f"the archive is broken: {error}")
