"""The values of the protocol: an event and its link, a mark, a run, a gap, a page of keys, a term.

Keys of the form `client#number` hold a client's own rising numbers.

They make idempotency cheap: a number above the client's highest is new without any look-up. A key
has this form when it ends in `#` and a number without leading zeros; every other key is free-form,
and is only compared.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, Literal
from uuid import UUID

from msgspec import Meta, Struct

from chain_kernel.limits import ID_MAX, KEY_BYTES_MAX, PAYLOAD_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Sequence


SEPARATOR: Final = "#"
_DIGITS_MAX: Final = 19
"""Digits of the largest number, 2^63 - 1; a longer tail makes the key a free-form one."""


def split_client_key(key: str) -> tuple[str, int] | None:
    """Return client and number of `key`; None when it is a free-form key."""
    client, _, digits = key.rpartition(SEPARATOR)
    if not (client and digits.isascii() and digits.isdecimal()) or len(digits) > _DIGITS_MAX:
        return None
    if digits[0] == "0" and len(digits) > 1:
        return None
    number = int(digits)
    return (client, number) if number <= ID_MAX else None


class Event(Struct, array_like=True, frozen=True, gc=False, forbid_unknown_fields=True):
    """An order as it is in its chain: on the wire `[id, pid, key, event_time_ns, payload]`.

    Bounds are checked when an event is decoded, not when it is constructed. The decoder checks
    those of key, time and payload. `chain_kernel.frame` checks those of id and pid, from the
    links: a decoder's check of both in every row would cost a receiver a twentieth of its time.
    """

    id: int
    """Position in the chain, 1 to `ID_MAX`. Rises, may skip numbers: nothing computes `id + 1`."""
    pid: int
    """Id of the previous row of the chain; 0 for the first. Always below `id`."""
    key: Annotated[str, Meta(min_length=1, max_length=KEY_BYTES_MAX)]
    """The client's unique id for this order."""
    event_time_ns: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
    """Time of the event, in nanoseconds since 1970 UTC, by the client's clock. Decides no order."""
    payload: Annotated[bytes, Meta(max_length=PAYLOAD_BYTES_MAX)]
    """The order itself; the engine never looks inside."""


def is_linked(after_id: int, events: Sequence[Event]) -> bool:
    """Return whether `events` follow the row `after_id` and each other without a break.

    An empty sequence is linked. One pass reads each id and pid once: this is two to three times as
    fast as comparing whole columns (lists of ids and of pids), which reads the rows from memory a
    second time. This is the hot path; `first_break` checks the same, and returns the place.
    """
    for event in events:  # noqa: SIM110 - all() of a generator takes 2.5 times as long
        # The same as `pid == after_id and pid < id`; the id is then the next `after_id`.
        if not after_id == event.pid < (after_id := event.id):
            return False
    return True


def first_break(after_id: int, events: Sequence[Event]) -> int | None:
    """Return the index of the first row that is not linked after `after_id`; None if all are."""
    for index, event in enumerate(events):
        if event.pid != after_id or event.id <= after_id:
            return index
        after_id = event.id
    return None


Cause = Literal["start", "frame", "heartbeat", "poll", "notice"]
"""The sign that rows are missing."""

Outcome = Literal["filled", "missing", "archived", "not yet readable", "interrupted", "open"]
"""The outcome of a gap. Only the first ends it. At the next three a receiver stays before it. At
`interrupted` the receiver ended first: the next one reads on from its checkpoint. An `open` gap is
being filled."""


class Gap(Struct, frozen=True, kw_only=True):
    """Rows that did not arrive by Kafka, and were looked up in the database."""

    chain_id: int
    after_id: int
    """The last row that was delivered before; exclusive."""
    until_id: int
    """The last row that was missing; inclusive."""
    cause: Cause
    """The sign that showed it: a later frame, a heartbeat, or a look at the database's head."""
    source: str
    """`primary` or `standby`: which kind of server gave the last of its rows, or refused them."""
    rows: int
    """Rows read; 0 when they could not be read."""
    found_at_ns: int
    """Wall clock, nanoseconds since 1970 UTC. Decides no order."""
    duration_ns: int
    """From detecting it to reading its last row, or giving up. It includes the caller's own time in
    between, and the time that a database was away. For an open one: so far."""
    outcome: Outcome = "filled"


TERMS_MAX: Final = 16
"""Number of terms that a standing lists, the newest. There is one per take-over; frames of older
ones are long gone from the topic's end, and their rows are read from the database."""


ROWS_AHEAD_BATCHES: Final = 10_000
"""Number of batches whose rows a standing counts: a few milliseconds, however far it is behind."""


class Mark(Struct, frozen=True, kw_only=True):
    """A place after a row of a chain, with the seal of a whole batch at or before it.

    The seal's unit is the batch, and a row may be in the middle of one: so a mark holds both. In a
    mark from the database it is the last whole batch. At the end of a run that came by a frame it
    is the last batch whose seal the database has shown: so a stored place never holds a seal that
    only a frame has shown.
    """

    id: int
    """Id of the row; 0 for the place before the first row."""
    batch_last_id: int
    """Last id of the batch; never above `id`, and 0 before the first batch."""
    seal: bytes
    """Seal after that batch; the chain's genesis seal before the first batch."""
    epoch: int
    """Epoch of that batch; 0 before the first batch."""

    @property
    def is_batch_end(self) -> bool:
        """True if the row is the last of its batch."""
        return self.id == self.batch_last_id


class ChainHead(Struct, frozen=True, kw_only=True):
    """The head row of a chain as read at one instant, together with the database's own id."""

    chain_id: int
    database_id: UUID
    epoch: int
    """Term of the leader; rises at every take-over."""
    nonce: bytes
    """Drawn by that leader. Empty until the first take-over."""
    last_id: int
    """head_persisted: the last committed id, 0 for an empty chain."""
    last_seal: bytes
    published_id: int
    """head_published: end of the contiguous run that the broker has acknowledged; <= last_id."""
    topic: str
    partition: int
    is_published: bool
    """True if the leader publishes to the topic; otherwise it notifies those who listen."""


class FrameTerm(Struct, frozen=True, kw_only=True):
    """One term of a chain's leaders: what readers of its frames need."""

    epoch: int
    nonce: bytes
    """Is in every frame that the leader of this term sends."""
    frame_key: bytes
    """Signs those frames. A secret: anyone who knows it can make frames that are believed."""

    def __repr__(self) -> str:
        return f"FrameTerm(epoch={self.epoch}, nonce={self.nonce.hex()})"


class ChainPosition(Struct, frozen=True, kw_only=True):
    """One place of a chain as a source reports it, read in one snapshot with the head."""

    head: ChainHead
    mark: Mark | None
    """The mark after the requested row; None when the source does not hold that row."""
    is_primary: bool
    """False on a standby, whose data may be old: only the primary's contradictions count."""
    terms: tuple[FrameTerm, ...] = ()
    """The newest TERMS_MAX terms of the chain, newest first, from the same snapshot."""
    batch_seal: bytes | None = None
    """Seal after the batch that was requested too; None when none ends there, or none was."""
    rows_ahead: int | None = None
    """Rows of the next `ROWS_AHEAD_BATCHES` batches that end after the requested row; None from a
    source that does not count."""


class Snapshot(Struct, frozen=True, kw_only=True):
    """A service's state after a row. With the rows after it, it gives the current state."""

    mark: Mark
    """The end of the last run that is in the state (`Run.end`)."""
    state: bytes
    """The service's own; the engine never looks inside."""


class KeyPage(Struct, frozen=True, kw_only=True):
    """The hashes of the keys of consecutive rows. It can always be rebuilt from the rows."""

    after_id: int
    """Exclusive; the previous page ends here."""
    until_id: int
    """Inclusive; the last id of a batch."""
    spans: bytes
    """Pairs of first id and count, 8 bytes each and big-endian: the runs of ids without a skip."""
    hashes: bytes
    """8 bytes per row, big-endian, in the order of the rows."""


class ClientNumber(Struct, frozen=True, gc=False):
    """The highest of a client's own numbers, as its keys `client#number` show."""

    client: str
    number: int
    """The highest that was accepted."""
    id: int
    """The row that holds it."""
    known_from: int
    """All rows of the client with a higher number are after `known_from_id`."""
    known_from_id: int


class Run(Struct, frozen=True, kw_only=True):
    """Linked, committed rows of one chain, from a frame or from a page of a fill. Never empty."""

    chain_id: int
    events: list[Event]
    """Rows in the order of the chain, each linked to the one before."""
    end: Mark
    """The place after the last row."""
    source: str = ""
    """`primary` or `standby`: the kind of server that it was read from; empty for a frame, and
    where a source does not say."""
    begins_within: bool = False
    """True if the reading of the rows began within the batch of its first ones: another one has
    read those before them, so no seal proves the batch."""

    @property
    def first_pid(self) -> int:
        """Id of the row before the run: where a checkpoint must be for the run to be next."""
        return self.events[0].pid

    @property
    def last_id(self) -> int:
        """Id of the last row."""
        return self.end.id


class StoredState(Struct, frozen=True, gc=False):
    """The digest of a state that a receiver's caller had after an order."""

    id: int
    """The order after which it had the state."""
    group: str
    """Whose state, such as a symbol; empty where the chain has one state."""
    digest: bytes


class StoredStates(Struct, frozen=True):
    """States that a receiver has stored, as far as they were read."""

    until_id: int
    """No state up to this id is left out. Above the receiver's place there is none."""
    states: tuple[StoredState, ...]
    """Those after the id that was asked for, by id."""


class ShadowReport(Struct, frozen=True, kw_only=True):
    """The result of a shadow's comparisons so far."""

    compared_id: int
    """The last order after which states were compared."""
    compared: int
    """States compared since the shadow's start."""
    groups: int = 0
    """Groups whose states differ."""
    first: ShadowDifference | None = None
    """The difference that was found first."""


class ShadowDifference(Struct, frozen=True, kw_only=True):
    """The first state of a group that differs: those after it differ because of it."""

    group: str
    id: int
    """Both states are those after this order."""
    equal_id: int
    """The last order after which both were equal; 0 for none."""
    stored: bytes
    """Digest of the other receiver's state."""
    found: bytes
    """Digest of the shadow's; empty where it has no state of the group."""


class IntakeReject(Struct, frozen=True, kw_only=True):
    """A record of an intake that became no order; stored with the mark that moved past it.

    The record itself stays where it is: `position` says where.
    """

    position: int
    """Position of the record in its source: its offset or its row."""
    key: str | None
    """The record's key; None where it has none that is valid as a key."""
    reason: str
    """The reason, for people."""


class IntakeMark(Struct, frozen=True, kw_only=True):
    """The place up to which an intake was read; stored in the transaction of the batch it led
    to."""

    source: str
    """`file:NAME` or `topic:NAME:PARTITION`."""
    position: int
    """Rows of the file, or the next offset of the partition."""
    digest: bytes
    """Running digest of what was read up to `position`, then the folder of a file; empty where the
    source needs none."""
    previous: int | None = None
    """The position stored so far; None where the source was never read. The mark is stored only if
    this is still the stored position: so no intake of a source skips or repeats what another one
    took, and none skips orders of its own that were not taken. None in a mark that was read."""
    rejects: tuple[IntakeReject, ...] = ()
    """Orders that were refused on the way here, stored with the mark; none in a mark that was
    read."""


class LeaseState(Struct, frozen=True, kw_only=True):
    """The state of a lease at one look. Two equal ones mean that it was not renewed in between."""

    epoch: int
    nonce: bytes
    counter: int
    """Raised by the leader at a steady pace."""
    released: bool
    """True if the leader handed over, or there never was one."""
    owner: str
    topic: str
    partition: int
    is_published: bool
    """True if the last leader had a broker."""
    is_ours: bool
    """True if it is led by a take-over of the store that looks, whose answer never came."""


class ServerIdentity(Struct, frozen=True):
    """Identity of the PostgreSQL that a session is on: an address is none.

    A standby that is promoted keeps the system identifier, and begins a new timeline; the primary
    that it replaced may come back at its old address, and answers that it is a primary, too.
    """

    system_identifier: int
    timeline: int

    def __str__(self) -> str:
        """Return it as errors and logs show it."""
        return f"system identifier {self.system_identifier}, timeline {self.timeline}"


TERM_SPREAD_IDS: Final = 2**29
"""A term's spread is below this: as many ids as a take-over skips per second, see
`sequencer.core`."""


class Term(Struct, frozen=True, kw_only=True):
    """A leader's term after its take-over: its epoch, and where the chain was.

    A term never changes; the sequencer's core tracks how the chain moves on.
    """

    chain_id: int
    database_id: UUID
    epoch: int
    nonce: bytes
    frame_key: bytes
    """Signs the frames of this term; drawn at its take-over, never published, never shown."""
    last_id: int
    last_seal: bytes
    last_committed_at_us: int
    published_id: int
    topic: str
    partition: int
    key_salt: int
    """Seeds the hashes of this chain's keys; 64 bits, not negative."""
    partition_ids: int
    """Ids that one partition of the table spans; no batch straddles a multiple of it."""
    server: ServerIdentity
    """The server on which the take-over committed. What the leader decides by is read and written
    there."""
    spread: int = 0
    """Drawn at the take-over, below TERM_SPREAD_IDS: it separates the ids of this term from those
    of another life of the chain that began at the same place."""
    seen_id: int = 0
    """The highest id in the topic's last frames, if it is above `last_id`: a life of the chain that
    was lost gave it, or it was made up. 0 for none."""

    def __repr__(self) -> str:
        """Show whose term it is, without the key of its frames and the salt of its keys."""
        return f"Term(chain_id={self.chain_id}, epoch={self.epoch}, last_id={self.last_id})"
