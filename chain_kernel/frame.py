"""One Kafka record: a slice of a batch, or a heartbeat. Documented byte by byte in `docs/wire.md`.

A frame proves its sender: its header ends with a MAC under the frame key of the sender's term,
which only the database knows. Readers call `is_signed` before they believe a field.

A frame never halts a chain: every fault in it is a `FrameError`, and costs at most a read of the
database. So decoding is strict: sizes are capped before anything is decoded, and the body is
decoded into bounded, typed structs only. What the protocol needs of a topic is here, too.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from hmac import compare_digest
from struct import Struct as Layout
from struct import error as LayoutError  # noqa: N812 - the struct module names it in lower case
from typing import TYPE_CHECKING, Final, cast

import msgspec
from blake3 import blake3

from chain_kernel import speed
from chain_kernel.errors import FrameError, TopicError
from chain_kernel.limits import CHAIN_ID_MAX, FRAME_BYTES_MAX, FRAME_ROWS_MAX, ID_MAX
from chain_kernel.model import Event, is_linked
from chain_kernel.seal import SEAL_BYTES, Columns
from chain_kernel.text import counted, reason_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MAGIC: Final = b"OCHN"
VERSION: Final = 2
NONCE_BYTES: Final = 16
FRAME_KEY_BYTES: Final = 32
MAC_BYTES: Final = 16
FLAG_HEARTBEAT: Final = 1
FLAG_BATCH_END: Final = 2

# magic, version, flags, header bytes, chain_id, count, body bytes, epoch, publisher epoch,
# publisher nonce, first_pid, first_id, last_id, seal before, seal after; then the MAC.
_LAYOUT: Final = Layout(f">4sBBHIIIqq{NONCE_BYTES}sqqq{SEAL_BYTES}s{SEAL_BYTES}s")
HEADER_BYTES: Final = _LAYOUT.size + MAC_BYTES

_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(list[Event])


class FrameHeader(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """All that a receiver needs to judge a frame, without its body."""

    chain_id: int
    epoch: int
    """Epoch of the batch, which may be older than the publisher's when a tail is resent."""
    publisher_epoch: int
    publisher_nonce: bytes
    """Drawn by the publisher at its take-over; it names the key that signs the frame."""
    first_pid: int
    """Id of the row before the first. In a heartbeat the head, like `first_id` and `last_id`."""
    first_id: int
    last_id: int
    count: int
    """Rows in the body; 0 in a heartbeat."""
    seal_before: bytes
    """Seal before the batch of this slice; in a heartbeat the seal of the head."""
    seal_after: bytes = bytes(SEAL_BYTES)
    """Seal after the batch if `is_batch_end`, else zeros."""
    is_batch_end: bool = False

    @property
    def is_heartbeat(self) -> bool:
        """True if the frame carries only the head."""
        return self.count == 0


def encode_frame(header: FrameHeader, rows: Columns | Sequence[Event], key: bytes) -> bytes:
    """Return the record for `rows` under `header`, signed with `key`.

    `key` is the frame key of the publisher's own term, FRAME_KEY_BYTES long; ValueError for
    another length. The caller guarantees that header and rows agree: this is the hot path, and
    `decode_body` checks it later.
    """
    frame = _with_body(rows)
    flags = (FLAG_HEARTBEAT if header.is_heartbeat else 0) | (
        FLAG_BATCH_END if header.is_batch_end else 0
    )
    _LAYOUT.pack_into(
        frame,
        0,
        MAGIC,
        VERSION,
        flags,
        HEADER_BYTES,
        header.chain_id,
        header.count,
        len(frame) - HEADER_BYTES,
        header.epoch,
        header.publisher_epoch,
        header.publisher_nonce,
        header.first_pid,
        header.first_id,
        header.last_id,
        header.seal_before,
        header.seal_after,
    )
    frame[_LAYOUT.size : HEADER_BYTES] = _mac(frame, HEADER_BYTES, key)
    return bytes(frame)


def _with_body(rows: Columns | Sequence[Event]) -> bytearray:
    """Return room for the header, and the body after it."""
    if isinstance(rows, Columns):
        if speed.native is not None:
            framed: bytearray = speed.native.frame(HEADER_BYTES, *rows)
            return framed
        # A tuple is encoded as an event is, and costs less to make.
        rows = cast("Sequence[Event]", list(zip(*rows, strict=True)))
    frame = bytearray(HEADER_BYTES)
    if rows:
        _encoder.encode_into(rows, frame, HEADER_BYTES)
    return frame


def notice_channel(chain_id: int) -> str:
    """Return the name of the channel on which a leader without a broker notifies."""
    return f"orderchain_{chain_id}"


def frame_notice(frame: bytes) -> str:
    """Return the text of a notification: the head, for who reads along, and the frame of it.

    It is far below the 8,000 bytes that a server takes.
    """
    return f"{decode_header(frame).last_id} {b64encode(frame).decode()}"


def notice_frame(notice: str) -> bytes | None:
    """Return the frame of a notification; None where it holds none."""
    try:
        return b64decode(notice.partition(" ")[2], validate=True)
    except ValueError:
        return None


def decode_header(record: bytes | None) -> FrameHeader:
    """Return the header of `record` after every check that needs no decoding of the body.

    It checks size, magic, version, lengths, flags and the bounds of each field, but not the sender:
    `is_signed` does that, since the header names the key. Raises FrameError with reason `empty`,
    `oversized`, `truncated`, `magic`, `version`, `length` or `bounds`.
    """
    if not record:
        raise FrameError("empty", "the record has no value")
    if len(record) > FRAME_BYTES_MAX:
        raise FrameError("oversized", f"{len(record)} bytes, at most {FRAME_BYTES_MAX}")
    if not record.startswith(MAGIC):
        raise FrameError("magic", f"was {record[:4]!r}, expected {MAGIC!r}")
    try:
        (
            _, version, flags, header_bytes, chain_id, count, body_bytes, epoch, publisher_epoch,
            nonce, first_pid, first_id, last_id, seal_before, seal_after,
        ) = _LAYOUT.unpack_from(record)  # fmt: skip
    except LayoutError:
        raise FrameError("truncated", f"no header in {counted(len(record), 'byte')}") from None
    if version != VERSION:
        older = "receiver" if version > VERSION else "sequencer"
        raise FrameError("version", f"was {version}, expected {VERSION}: upgrade the {older}")
    # A later writer may append header fields; they come before the MAC, which stays last.
    if header_bytes < HEADER_BYTES or header_bytes + body_bytes != len(record):
        raise FrameError("length", f"{header_bytes} + {body_bytes} is not {len(record)}")
    header = FrameHeader(
        chain_id=chain_id,
        epoch=epoch,
        publisher_epoch=publisher_epoch,
        publisher_nonce=nonce,
        first_pid=first_pid,
        first_id=first_id,
        last_id=last_id,
        count=count,
        seal_before=seal_before,
        seal_after=seal_after,
        is_batch_end=bool(flags & FLAG_BATCH_END),
    )
    if not _is_within_bounds(header, is_heartbeat=bool(flags & FLAG_HEARTBEAT), body=body_bytes):
        raise FrameError("bounds", f"the header contradicts itself: {header}")
    return header


def is_signed(record: bytes, key: bytes) -> bool:
    """Return whether `record`, whose header is decoded, carries the MAC of `key` over all of it."""
    (header_bytes,) = _HEADER_SIZE.unpack_from(record, _HEADER_SIZE_AT)
    mac = record[header_bytes - MAC_BYTES : header_bytes]
    return compare_digest(mac, _mac(record, header_bytes, key))


def decode_body(record: bytes, header: FrameHeader) -> list[Event]:
    """Return the rows of `record`, whose checked header is `header`.

    First and last id, the first pid and the count agree with the header, and every field is within
    its bounds; the rows between need not be linked. Raises FrameError with reason `body`.
    """
    events = _decode_rows(record, header)
    if not is_linked(header.first_pid, events):
        _check_ids(events)
    return events


def decode_linked_body(record: bytes, header: FrameHeader) -> list[Event]:
    """Return the same as `decode_body`, if every row is linked to the one before.

    Raises FrameError with reason `body`, or `link` for rows that are in order but not linked.
    """
    events = _decode_rows(record, header)
    # Ids and pids need no check of their own: the header's first pid is 0 or more and its last id
    # is at most ID_MAX; linked rows rise from the one to the other, so all of them are in between.
    if not is_linked(header.first_pid, events):
        _check_ids(events)
        raise FrameError("link", "a row does not follow the one before it")
    return events


def _decode_rows(record: bytes, header: FrameHeader) -> list[Event]:
    """Return the rows; only their count, first pid, first id and last id are checked."""
    (header_bytes,) = _HEADER_SIZE.unpack_from(record, _HEADER_SIZE_AT)
    try:
        events = _decoder.decode(memoryview(record)[header_bytes:])
    # Hostile nesting raises RecursionError. Broken text raises UnicodeDecodeError, which is a
    # ValueError like every error of msgspec.
    except (ValueError, RecursionError) as error:
        raise FrameError("body", reason_of(error)) from None
    if (
        len(events) != header.count
        or events[0].pid != header.first_pid
        or events[0].id != header.first_id
        or events[-1].id != header.last_id
    ):
        raise FrameError("body", "the rows are not those that the header names")
    return events


def _check_ids(events: list[Event]) -> None:
    """Check each id and pid, where the links prove nothing."""
    for event in events:
        if not (1 <= event.id <= ID_MAX and 0 <= event.pid <= ID_MAX):
            raise FrameError("body", f"id {event.id} or pid {event.pid} is out of bounds")


_HEADER_SIZE: Final = Layout(">H")
_HEADER_SIZE_AT: Final = 6


def _mac(frame: bytes | bytearray, header_bytes: int, key: bytes) -> bytes:
    """Return the MAC of a frame: over its body, its header without the MAC, the header's length."""
    # The body comes first, since the hash takes whole KiB from the beginning several at a time:
    # 15 kB took 10.4 us after the header, and 6.5 us before it. The body is never copied; the
    # header is, since a copy of so little is faster than a view. The length at the end shows where
    # the two meet.
    header = frame[: header_bytes - MAC_BYTES] + frame[_HEADER_SIZE_AT : _HEADER_SIZE_AT + 2]
    return blake3(memoryview(frame)[header_bytes:], key=key).update(header).digest(MAC_BYTES)


def _is_within_bounds(header: FrameHeader, *, is_heartbeat: bool, body: int) -> bool:
    """Return whether the fields of a header are consistent."""
    if not 1 <= header.chain_id <= CHAIN_ID_MAX:
        return False
    if not 0 <= header.epoch <= header.publisher_epoch:
        return False
    if is_heartbeat:
        return (
            header.count == 0
            and body == 0
            and 0 <= header.first_pid == header.first_id == header.last_id
        )
    return (
        1 <= header.count <= FRAME_ROWS_MAX
        and body > 0
        and 0 <= header.first_pid < header.first_id <= header.last_id
        and header.last_id - header.first_id >= header.count - 1
    )


def default_topic(chain_id: int) -> str:
    """Return the topic of a chain that was created without naming one."""
    return f"orderchain.{chain_id}"


def topic_refusal(topic: str, partitions: int, settings: Mapping[str, str]) -> TopicError | None:
    """Return what is wrong with a topic with so many partitions and such settings, else None.

    One chain, one partition: Kafka keeps no order between partitions. No compaction: it removes
    records that have the same key, and the engine's have.
    """
    if partitions == 0:
        return TopicError("topic", topic, "a topic that exists")
    if partitions != 1:
        found = f"{topic} with {partitions} partitions"
        return TopicError("topic", found, "a topic with exactly 1 partition")
    policy = settings.get("cleanup.policy", "")
    if "compact" in policy:
        return TopicError("topic", f"{topic} with cleanup.policy={policy}", "no compaction")
    return None
