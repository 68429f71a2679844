"""Records of Kafka, read one by one: what cannot be read stops nothing that comes before it.

aiokafka gives a whole answer of the broker up for one record that it cannot decode, and with it
what it has drained of other partitions. It decodes names of headers strictly, though no broker asks
for UTF-8. Here everything before such a record is handed out first; a header may have any name; and
what is wrong is raised as an `UnreadableRecord`, again and again, until the caller seeks past it.
"""

from __future__ import annotations

import struct
import zlib
from gzip import BadGzipFile
from itertools import chain
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.consumer import fetcher
from aiokafka.errors import CorruptRecordException, KafkaError, UnsupportedCodecError
from aiokafka.record.default_records import _DefaultRecordBatchPy as BatchInPython
from aiokafka.record.memory_records import MemoryRecords

from chain_kernel.text import reason_of

if TYPE_CHECKING:
    from collections.abc import Iterator


try:
    from cramjam import DecompressionError
except ImportError:  # then no record is decompressed by it either

    class DecompressionError(Exception):  # type: ignore[no-redef]
        """Never raised."""


_UNREADABLE: Final = (
    BadGzipFile, CorruptRecordException, DecompressionError, EOFError, IndexError, struct.error,
    UnsupportedCodecError, ValueError, zlib.error,
)  # fmt: skip
"""Errors of aiokafka for records that it cannot decode: some are errors of the codec itself."""

_CODECS: Final = ("snappy", "lz4", "zstd")
"""The compressions that aiokafka knows by the package cramjam alone."""

_HEAD: Final = struct.Struct(">qi")
"""The beginning of each batch of an answer: its first offset, and how many bytes follow."""

_WHOLE_HEAD_BYTES: Final = 61
_MAGIC_AT: Final = 16
_MAGIC: Final = 2
"""The whole head of a batch, and the byte in it that is the same in all of today's."""


class UnreadableRecord(KafkaError):  # type: ignore[misc] # aiokafka has no types
    """A record that the broker sent, and that this process cannot decode: no try is better.

    `offset` is its place in the partition `at`, and `next_offset` the first one after what cannot
    be read with it: records of one batch share a checksum. `missing` is the compression whose codec
    is not installed, else None; `is_damaged` says that the bytes are not those that were sent.
    """

    def __init__(
        self, at: TopicPartition, offset: int, next_offset: int, cause: Exception, is_damaged: bool
    ) -> None:
        self.at, self.offset, self.next_offset = at, offset, next_offset
        self.is_damaged = is_damaged
        self.reason = "its checksum is wrong" if is_damaged else reason_of(cause)
        is_codec = isinstance(cause, UnsupportedCodecError)
        self.missing = next((name for name in _CODECS if is_codec and name in self.reason), None)
        last = f" to {next_offset - 1}" if next_offset > offset + 1 else ""
        self.place = f"{at.topic}, partition {at.partition}, offset {offset}{last}"
        super().__init__(f"record of topic {self.place} cannot be decoded: {self.reason}")


class RecordConsumer(AIOKafkaConsumer):  # type: ignore[misc] # aiokafka has no types
    """A consumer whose `getmany` and `getone` raise UnreadableRecord, after all that is before."""

    @property
    def _fetcher(self) -> Any:  # noqa: ANN401 - aiokafka has no types
        return self._own_fetcher

    @_fetcher.setter
    def _fetcher(self, made: Any) -> None:  # noqa: ANN401 - as above
        # As soon as it is made, before it has asked for anything.
        if made is not None:
            made.__class__ = _Fetcher
        self._own_fetcher = made


class _AnyName(bytearray):
    """Bytes in which the name of a header is text, whatever it holds."""

    def __getitem__(self, where: Any) -> Any:  # noqa: ANN401 - as bytearray
        found = super().__getitem__(where)
        return _AnyName(found) if isinstance(where, slice) else found

    def decode(self, *_: object) -> str:
        """Return the text; bytes that are none are written as in Python's own strings."""
        return super().decode("utf-8", "backslashreplace")


class _PatientBatch(BatchInPython):  # type: ignore[misc] # aiokafka has no types
    """A batch whose headers may have any name: several times slower than the compiled one."""

    _buffer: Any

    def _maybe_uncompress(self) -> None:
        super()._maybe_uncompress()
        self._buffer = _AnyName(self._buffer)


class _Batches:
    """The batches of one answer, the compiled ones of aiokafka; the first one patient if asked."""

    def __init__(self, data: bytes, *, is_patient: bool = False) -> None:
        self._data = data
        self._batches = MemoryRecords(data)
        self._start = self._end = 0
        self._is_patient = is_patient
        self.size_in_bytes = self._batches.size_in_bytes

    @property
    def is_patient(self) -> bool:
        """True if the batch that is read now is a patient one."""
        return self._is_patient and not self._start

    def has_next(self) -> bool:
        """Return whether there is another batch; a first one that is cut off counts."""
        # A broker sends the first one whole, whatever its size: the length is a wrong one.
        return self._batches.has_next() or (not self._end and bool(self._data))

    def next_batch(self) -> Any:  # noqa: ANN401 - of aiokafka
        """Return the next batch. Raises what aiokafka does."""
        self._start = start = self._end
        _, length = _HEAD.unpack_from(self._data, start)
        self._end = start + _HEAD.size + length
        batch = self._batches.next_batch()
        if batch is None:
            raise CorruptRecordException(f"a length of {length} bytes, which did not come")
        return _PatientBatch(self._data[start : self._end]) if self.is_patient else batch

    def patient(self) -> _Batches:
        """Return the batches from the one that is read now on, which is read patiently."""
        return _Batches(self._data[self._start :], is_patient=True)

    def unreadable(self, at: TopicPartition, offset: int, cause: Exception) -> UnreadableRecord:
        """Return what is wrong with the rest of the batch, read from `offset` on."""
        start, end = self._start, self._end
        batch = self._data[start : max(start, end)]
        if len(self._data) - start >= _HEAD.size:
            offset = max(offset, _HEAD.unpack_from(self._data, start)[0])
        next_offset, is_damaged = offset + 1, True
        try:
            made = BatchInPython(batch)
            is_damaged = not made.validate_crc()
            next_offset = max(next_offset, made.next_offset)
        except (IndexError, struct.error):
            pass  # not even a whole head
        # What a damaged head says of its end is worth less than where the next one begins. But a
        # length that is damaged too leads to bytes of an order, and these to any offset.
        is_end_known = end - start >= _WHOLE_HEAD_BYTES and len(self._data) - end > _MAGIC_AT
        if is_end_known and self._data[end + _MAGIC_AT] == _MAGIC:
            next_offset = max(offset + 1, _HEAD.unpack_from(self._data, end)[0])
        return UnreadableRecord(at, offset, next_offset, cause, is_damaged)


class _PartitionRecords(fetcher.PartitionRecords):  # type: ignore[misc] # as above
    """Records of one partition in one answer. It ends at one that cannot be read."""

    unreadable: UnreadableRecord | None = None
    next_fetch_offset: int
    _records: Any
    _records_iterator: Any

    def _unpack_records(self) -> Iterator[Any]:
        while True:
            try:
                yield from super()._unpack_records()
                return
            except _UNREADABLE as error:
                if self._records.is_patient:
                    self.unreadable = self._records.unreadable(
                        self._tp, self.next_fetch_offset, error
                    )
                    return
                self._records = self._records.patient()

    def begin(self) -> UnreadableRecord | None:
        """Read the first record; return what is wrong with it, None if it is handed out later."""
        asked, first = self.next_fetch_offset, next(self, None)
        if first is None and self.unreadable is not None:
            return self.unreadable
        reached, rest = self.next_fetch_offset, self._records_iterator or ()
        # Until it is handed out, aiokafka compares this with the place of its reader.
        self.next_fetch_offset = asked

        def resumed() -> Iterator[Any]:
            self.next_fetch_offset = reached
            yield from rest if first is None else chain((first,), rest)

        self._records_iterator = resumed()
        return None


def _result(
    tp: TopicPartition,
    *,
    assignment: Any,  # noqa: ANN401 - of aiokafka
    partition_records: _PartitionRecords,
    backoff: float,
) -> Any:  # noqa: ANN401 - as above
    """Return what the reader gets of one answer: records, or the error in the place of the first.

    An error waits for the next call where this one has records of other partitions.
    """
    if error := partition_records.begin():
        return fetcher.FetchError(error=error, backoff=backoff)
    return fetcher.FetchResult(
        tp, assignment=assignment, partition_records=partition_records, backoff=backoff
    )


class _Fetcher(fetcher.Fetcher):  # type: ignore[misc] # aiokafka has no types
    """aiokafka's own, which makes these objects of an answer, and no others.

    There is no public way to give it a decoder, and its module is shared with other consumers of
    this process: so it is its own code, with other names around it.
    """

    def _set_error(self, tp: TopicPartition, error: Exception) -> None:
        error.at = tp  # type: ignore[attr-defined] # for readers of many partitions
        super()._set_error(tp, error)

    _proc_fetch_request = FunctionType(
        fetcher.Fetcher._proc_fetch_request.__code__,
        {
            **vars(fetcher),
            "MemoryRecords": _Batches,
            "PartitionRecords": _PartitionRecords,
            "FetchResult": _result,
        },
    )
