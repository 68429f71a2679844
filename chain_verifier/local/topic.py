"""What was published of a chain, read by plain Python frame by frame, never all at once."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

from chain_verifier.findings import Finding, Findings, Kind, gathered
from chain_verifier.frame_reading import (
    FIRST,
    FORGED,
    LATE,
    REPEATED,
    SIGNED,
    FrameKeys,
    events_of,
    header_of,
    standing_of,
)
from chain_verifier.local.kafka import TopicReader
from chain_verifier.local.spool import SQL, open_spool
from chain_verifier.local.table import PAGE_ROWS, Row
from chain_verifier.published import Published, place_of
from chain_verifier.topic_log import TopicLog, TopicRecord
from orderchain.clients.kafka_config import KafkaConfig

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Collection, Iterator, Sequence

    from chain_verifier.config import TopicSource
    from chain_verifier.horizon import Horizon
    from chain_verifier.local.database import DatabaseTable
    from orderchain.frame import FrameHeader


class TopicTable(Published):
    """The rows of a topic, each where it stands first; a row that stands again as it was is none.

    To open it reads every record once, to learn which frames there are; the rows are decoded when
    they are looked at. With a `database`, frames that are not signed by one of its leaders, or
    whose seals are not those of its batches, are told apart. Raises ConnectError, TopicError or
    SourceBroken. `close` ends the connection.
    """

    has_positions: Final = False

    def __init__(
        self, source: TopicSource, chain_id: int, database: DatabaseTable | None = None
    ) -> None:
        self.name = source.name
        self.chain_id = chain_id
        self._database = database
        self._head = None if database is None else database.head
        topic, partition = place_of(source, chain_id, self._head)
        self._log = TopicLog(self.name)
        self._keys: FrameKeys | None = None
        self._changed: sqlite3.Connection | None = None
        with ExitStack() as opened:
            self._reader = TopicReader(self.name, KafkaConfig.of(source.kafka), topic, partition)
            opened.callback(self._reader.close)
            self._bounds = self._reader.bounds
            if database is not None:
                # Behind the end that is looked at: no frame before it is of a later term.
                self._keys = database.frame_keys()
            for page in self._reader.pages():
                for record in self._judged(page):
                    self._log.take(record)
            self._keep_changed_repeats(opened)
            self._opened = opened.pop_all()

    def close(self) -> None:
        """Close the connection to the broker, and remove what was kept on disk."""
        self._opened.close()

    @property
    def has_forged(self) -> bool:
        """Whether there are frames that the database disowns."""
        return bool(self._log.forged)

    def forged_pages(self) -> Iterator[Sequence[Row]]:
        """Yield the rows of those frames. Raises SourceBroken."""
        return self._standing({FORGED})

    def pages(
        self, ids: tuple[int, int] | None = None, *, content: bool = True
    ) -> Iterator[Sequence[Row]]:
        """Yield the rows where they stand first, then those that stand again otherwise."""
        yield from self._standing({FIRST, LATE})
        yield from self._changed_pages()

    def notes(self) -> tuple[str, ...]:
        """Return nothing: what a topic has to say, it says as a topic."""
        return ()

    def disorder(self, horizon: Horizon) -> Findings:
        """Return what is wrong with the order of the frames. Raises SourceBroken."""
        epochs = self._log.wrong_epochs()
        if not self._log.walk.is_late:
            return gathered(epochs)
        groups: dict[int, list[int]] = {}
        for offset, rows in self._frames({LATE}):
            late = [row[1] for row in rows if row[1] > horizon.start]
            if late:
                highest = self._log.walk.marks[offset].highest_before
                first, last, count = groups.get(highest, [late[0], late[0], 0])
                groups[highest] = [min(first, *late), max(last, *late), count + len(late)]
        found = sorted((first, highest, last, n) for highest, (first, last, n) in groups.items())
        late_findings = [
            Finding(
                kind=Kind.OUT_OF_ORDER,
                source=self.name,
                id=first,
                until_id=last,
                after_id=highest,
                count=count,
            )
            for first, highest, last, count in found
        ]
        return gathered([*epochs, *late_findings])

    def _judged(self, page: Sequence[tuple[int, bytes | None]]) -> Iterator[TopicRecord]:
        """Say of each record whether it is a frame, and whether it stands in the database so."""
        headers = [
            (offset, header_of(value, self.chain_id), value or b"") for offset, value in page
        ]
        asked = [one.first_pid for _, one, _ in headers if not isinstance(one, str)]
        batches: dict[int, Any] = {}
        if self._database is not None and asked:
            batches = self._database.batches_at(asked)
        for offset, header, value in headers:
            if isinstance(header, str):
                yield TopicRecord(offset=offset, reason=header)
                continue
            batch = batches.get(header.first_pid)
            sender = None if self._keys is None else self._keys.sender_of(value, header)
            is_genuine = sender is None or (
                sender == SIGNED and batch is not None and _is_genuine(header, batch)
            )
            epoch = header.epoch if batch is None else batch["batch_epoch"]
            yield TopicRecord(
                offset=offset,
                reason=None,
                is_heartbeat=header.is_heartbeat,
                first_pid=header.first_pid,
                first_id=header.first_id,
                last_id=header.last_id,
                count=header.count,
                epoch=header.epoch,
                sender=sender,
                is_genuine=is_genuine,
                batch_epoch=epoch,
            )

    def _standing(self, standings: Collection[int]) -> Iterator[Sequence[Row]]:
        for _, rows in self._frames(standings):
            yield rows

    def _frames(self, standings: Collection[int]) -> Iterator[tuple[int, list[Row]]]:
        """Yield of each frame its offset, and its rows that stand so."""
        for page in self._reader.pages():
            for offset, value in page:
                mark = self._log.walk.marks.get(offset)
                is_forged = offset in self._log.forged
                rows = [
                    (self.chain_id, one.id, one.pid, one.key, one.event_time_ns, one.payload)
                    for one in events_of(value, self.chain_id)
                    if standing_of(one.id, mark, is_forged=is_forged) in standings
                ]
                if rows:
                    yield offset, rows

    def _keep_changed_repeats(self, opened: ExitStack) -> None:
        """Put the rows that stand again, but not as they stood before, on disk.

        Only the ids that stand twice are looked at.
        """
        seen = list(self._log.seen_again())
        if not seen:
            return
        low, high = min(after for after, _ in seen), max(until for _, until in seen)
        removed = self.first_start if self._bounds.first else 0
        spool = opened.enter_context(open_spool("pairs", self.name))
        for standings, is_first, above in (
            ({FIRST, LATE}, True, low),
            ({REPEATED}, False, removed),
        ):
            for page in self._standing(standings):
                rows = (
                    (row[1], is_first, row[2], row[3].encode(), row[4], row[5])
                    for row in page
                    if row[1] > above and row[1] <= high
                )
                spool.executemany(SQL["pair"], rows)
        spool.execute(SQL["changed"])
        self._changed = spool

    def _changed_pages(self) -> Iterator[Sequence[Row]]:
        at = 0
        while self._changed is not None:
            found = self._changed.execute(SQL["changed_page"], (at, PAGE_ROWS)).fetchall()
            if not found:
                return
            at = found[-1][0]
            yield [
                (self.chain_id, row_id, pid, key.decode(), event_time_ns, payload)
                for _, row_id, pid, key, event_time_ns, payload in found
            ]


def _is_genuine(header: FrameHeader, batch: Any) -> bool:  # noqa: ANN401 - a row of asyncpg
    """Say whether a frame is (a slice of) the batch behind the seal that it names."""
    if header.seal_before != batch["anchor"]:
        return False
    if header.is_heartbeat:
        return bool(header.last_id == batch["anchor_id"])
    if batch["batch_last_id"] is None or header.last_id > batch["batch_last_id"]:
        return False
    is_end = header.last_id == batch["batch_last_id"] and header.seal_after == batch["batch_seal"]
    return is_end or not header.is_batch_end
