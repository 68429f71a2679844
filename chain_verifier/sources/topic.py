"""Rows of chains as they were published: each once, in the order of the topic, nothing proven."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import astuple

from chain_verifier.checks.published import Bounds, place_of
from chain_verifier.checks.topic_frames import FIRST, LATE, TopicWalk, record_of, rows_standing
from chain_verifier.sources.columns import frame_rows
from chain_verifier.sources.published_reader import PublishedReader, bounds_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from chain_verifier.sources.options import ChainOptions
    from chain_verifier.sources.published_reader import PublishedRecord


class TopicRange(Struct, frozen=True):
    """The records of one chain's topic up to where it ended when the frame was planned."""

    chain_id: int
    bounds: Bounds
    rows: int
    """As many as a task may have: each topic is a task of its own."""


class TopicRows:
    """The rows of the chains' topics. Implements `RangedRows`."""

    def __init__(self, options: ChainOptions) -> None:
        self._options = options

    def ranges(self) -> list[TopicRange]:
        """Return one range for each topic. Raises ConnectError, TopicError."""
        source = self._options.topic
        return [
            TopicRange(
                chain_id,
                bounds_of(source, *place_of(source, chain_id, None)),
                self._options.partition_rows,
            )
            for chain_id in self._options.chains or ()
        ]

    def read(self, ranges: Sequence[TopicRange]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of each frame, without those that earlier frames have brought."""
        for asked in ranges:
            walk = TopicWalk()
            place = place_of(self._options.topic, asked.chain_id, None)
            with closing(PublishedReader(self._options.topic, *place)) as reader:
                for page in reader.pages(asked.bounds):
                    yield from self._rows(asked.chain_id, page, walk)

    def _rows(
        self, chain_id: int, page: Sequence[PublishedRecord], walk: TopicWalk
    ) -> Iterator[pa.RecordBatch]:
        start, until = self._options.start, self._options.until
        for offset, value, _ in page:
            frame = record_of(offset, value, chain_id, None)
            if frame.reason is not None or frame.is_heartbeat:
                continue
            walk.add(frame)
            found = rows_standing(value, chain_id, walk.marks.pop(offset, None), (FIRST, LATE))
            events = [event for event in found if start < event.id <= until]
            if events:
                ends = [frame.is_batch_end and event.id == frame.last_id for event in events]
                columns = tuple(zip(*map(astuple, events), strict=True))
                yield frame_rows(chain_id, columns, [frame.epoch] * len(events), ends)
