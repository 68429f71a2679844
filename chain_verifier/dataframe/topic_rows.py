"""Rows of chains as they were published: each once, in the order of the topic, nothing proven."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import astuple

from chain_verifier.checks.published import Bounds, place_of
from chain_verifier.checks.topic_frames import (
    FIRST,
    LATE,
    TopicRecord,
    TopicWalk,
    events_of,
    header_of,
    standing_of,
)
from chain_verifier.dataframe.columns import rows_of
from chain_verifier.published_reader import PublishedReader, bounds_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from chain_verifier.config import TopicSource
    from chain_verifier.dataframe.options import ChainOptions


class TopicRange(Struct, frozen=True, tag=True):
    """The records of one chain's topic up to where it ended when the frame was planned."""

    chain_id: int
    bounds: Bounds
    rows: int
    """As many as a task may have: each topic is a task of its own."""


def topic_ranges(options: ChainOptions) -> list[TopicRange]:
    """Return what is read. Raises ConnectError, TopicError."""
    return [
        TopicRange(
            chain_id,
            bounds_of(options.topic, *place_of(options.topic, chain_id, None)),
            options.partition_rows,
        )
        for chain_id in options.chains or ()
    ]


def read_topic(options: ChainOptions, asked: TopicRange) -> Iterator[pa.RecordBatch]:
    """Yield the rows of each frame, without those that earlier frames have brought."""
    walk = TopicWalk()
    for record in _records(options.topic, asked):
        header = header_of(record.value, asked.chain_id)
        if isinstance(header, str) or header.is_heartbeat:
            continue
        names = ("is_heartbeat", "first_pid", "first_id", "last_id", "count", "epoch")
        fields = {name: getattr(header, name) for name in names}
        walk.add(TopicRecord(offset=record.offset, reason=None, **fields))
        mark = walk.marks.pop(record.offset, None)
        events = [
            event
            for event in events_of(record.value, asked.chain_id)
            if options.start < event.id <= options.until
            and standing_of(event.id, mark, is_forged=False) in (FIRST, LATE)
        ]
        if events:
            ends = [header.is_batch_end and event.id == header.last_id for event in events]
            columns = tuple(zip(*map(astuple, events), strict=True))
            yield rows_of(asked.chain_id, columns, [header.epoch] * len(events), ends)


def _records(source: TopicSource, asked: TopicRange) -> Iterator[Any]:
    topic, partition = place_of(source, asked.chain_id, None)
    with closing(PublishedReader(source, topic, partition)) as reader:
        for page in reader.pages(asked.bounds):
            yield from page
