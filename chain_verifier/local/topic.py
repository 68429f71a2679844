"""The published records of a chain, read by plain Python frame by frame, never all at once."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import astuple

from chain_verifier.checks.neighbours import first_of_each_kind
from chain_verifier.checks.published import PublishedTopic, TopicLog, place_of
from chain_verifier.checks.topic_frames import (
    FIRST,
    FORGED,
    LATE,
    REPEATED,
    record_of,
    rows_standing,
)
from chain_verifier.findings import Finding, Findings, Kind
from chain_verifier.local.table import SQL, open_scratch
from chain_verifier.sources.published_reader import PublishedReader

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from chain_verifier.checks.buckets import Horizon
    from chain_verifier.checks.topic_frames import Ranges
    from chain_verifier.config import TopicSource
    from chain_verifier.sources.content import Row
    from chain_verifier.stored_chain import StoredChain


class LocalTopicTable(PublishedTopic):
    """The rows of a topic, each at its first occurrence; an identical repeat is no further row.

    Opening it reads every record once, to learn which frames there are; the rows are decoded when
    they are looked at. With a `database`, frames that are not signed by one of its leaders, or
    whose seals are not those of its batches, are kept apart. Raises ConnectError, TopicError or
    SourceBroken. `close` ends the connection.
    """

    is_sorted = False

    def __init__(
        self, source: TopicSource, chain_id: int, database: StoredChain | None = None
    ) -> None:
        self.name = source.name
        self.chain_id = chain_id
        self._database = database
        self._head = None if database is None else database.head
        topic, partition = place_of(source, chain_id, self._head)
        self._log = TopicLog(self.name, self._head.boundary_id if self._head else 0)
        self._reader = PublishedReader(source, topic, partition)
        try:
            self._bounds = self._reader.bounds
            # Read after the end was fixed: no frame before this end is of a later term.
            keys = None if database is None else database.frame_keys()
            for page in self._reader.pages():
                records = [record_of(offset, value, chain_id, keys) for offset, value, _ in page]
                for record in records if database is None else database.judged(records):
                    self._log.take(record)
            self.may_lack: Ranges = () if database is None else database.skips()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the connection to the broker."""
        self._reader.close()

    @property
    def has_forged(self) -> bool:
        """True if there are frames that the database disowns."""
        return bool(self._log.forged)

    def forged_rows(self) -> Iterator[Row]:
        """Yield the rows of those frames. Raises SourceBroken."""
        for _, rows in self._frames({FORGED}):
            yield from rows

    def pages(self, after_id: int = 0) -> Iterator[Sequence[Row]]:
        """Yield the first occurrence of each row, and repeats with other content, frame by frame.

        What occurs twice is known from the first look: only of these ids the contents are kept, as
        digests in a table on disk.
        """
        after, until = self._log.seen_again() or (0, 0)
        with open_scratch("seen", self.name) as scratch:
            for _, rows in self._frames({FIRST, LATE, REPEATED}):
                page = []
                for row in rows:
                    if after < row[1] <= until:
                        digest = sha256(msgspec.msgpack.encode(row)).digest()
                        if scratch.execute(SQL["see"], (row[1], digest)).rowcount != 1:
                            continue
                    page.append(row)
                yield page

    def notes(self) -> tuple[str, ...]:
        """Return nothing: `notes_on` returns the notes of a topic."""
        return ()

    def disorder(self, horizon: Horizon) -> Findings:
        """Return the first frame of a wrong epoch, and the first rows that are out of order.

        Raises SourceBroken.
        """
        return first_of_each_kind([*self._log.wrong_epochs(), *self._late(horizon)])

    def _late(self, horizon: Horizon) -> Iterator[Finding]:
        if not self._log.walk.is_late:
            return
        for offset, rows in self._frames({LATE}):
            late = [row[1] for row in rows if not horizon.is_before(row[1])]
            if late:
                yield Finding(
                    kind=Kind.OUT_OF_ORDER,
                    source=self.name,
                    id=late[0],
                    until_id=late[-1],
                    after_id=self._log.walk.marks[offset].highest_before,
                    count=len(late),
                )
                return

    def _frames(self, standings: Collection[int]) -> Iterator[tuple[int, list[Row]]]:
        """Yield for each frame its offset, and its rows that have one of `standings`."""
        for page in self._reader.pages():
            for offset, value, _ in page:
                found = rows_standing(
                    value,
                    self.chain_id,
                    self._log.walk.marks.get(offset),
                    standings,
                    is_forged=offset in self._log.forged,
                )
                if found:
                    yield offset, [(self.chain_id, *astuple(event)) for event in found]
