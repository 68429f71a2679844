"""Every Protocol between a core or a service and the outside world.

The real implementations are in `sequencer`, `matcher_receiver` and `gapfill`; a simulation brings
its own. Each method states what it raises; every one of them ends by a deadline of its own.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

from chain_kernel.limits import ID_MAX

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
    from datetime import datetime
    from uuid import UUID

    from chain_kernel.errors import HaltError
    from chain_kernel.model import (
        ChainPosition,
        ClientNumber,
        Event,
        Gap,
        IntakeMark,
        KeyPage,
        LeaseState,
        Mark,
        Run,
        ShadowReport,
        Snapshot,
        StoredState,
        StoredStates,
        Term,
    )
    from chain_kernel.seal import Batch


NO_STATES: Final[Mapping[str, bytes]] = MappingProxyType({})
"""No digests of states."""


class Closable(Protocol):
    """A part that may hold connections."""

    async def close(self) -> None:
        """Close what it holds; never raises, never waits beyond its deadline."""
        ...


class PendingCommit(Protocol):
    """A commit in the air: sent, and not known to be done."""

    async def outcome(self) -> None:
        """Wait until the batch is committed. Await it once; `follow` may come before its end.

        After UnknownOutcome and RetryError the connection is gone: the next call must be
        `take_over_again`. After RowLocked it is not: the same batch may be sent again.

        Raises:
            Fenced: the head row is not as this leader left it.
            IntakeMoved: a mark of `intake` does not follow the stored one.
            UnknownOutcome: the answer was lost, or shows that the wait for a standby was given up.
            RetryError: certainly nothing was committed; RowLocked where a lock was in the way.
        """
        ...

    def follow(
        self, batch: Batch, *, published_id: int, intake: Sequence[IntakeMark] = ()
    ) -> PendingCommit | None:
        """Send the commit of `batch` after this one; None where that cannot be done at once.

        Then nothing has happened. The server begins it when this one has ended, and the fence
        refuses it unless this one was committed. Its outcome is asked for after this one's, also
        when the connection was lost: then it is UnknownOutcome. At most one follows.
        """
        ...


class ChainStore(Closable, Protocol):
    """The sequencer's side of the database, for one chain."""

    async def look(self) -> LeaseState:
        """Return who leads, and how often that leader has renewed its lease.

        Raises:
            ChainMissing: the database has no such chain.
            SchemaError: its schema is of another version, or hides rows.
            DurabilityError: it may lose what it acknowledges.
            ClockError: its clock and ours differ too much.
            ConnectError: the settings cannot lead to a connection.
            RetryError: there is none now.
        """
        ...

    async def take_over(self, owner: str, seen: LeaseState) -> Term:
        """Raise the epoch, end the old leader's backend, and return the new term.

        It uses compare-and-set on epoch, nonce and counter of `seen`.

        Raises:
            Fenced: one of them has moved: another process was faster, or the leader is alive.
            OrderchainError: one of the errors of `look`.
        """
        ...

    async def take_over_again(self, owner: str, held: Term) -> Term:
        """Raise the epoch while `held` still leads the chain, on a connection that works.

        Raises:
            Fenced: another one has led the chain since; it is never taken back.
            OrderchainError: one of the errors of `look`.
        """
        ...

    async def begin(
        self, batch: Batch, *, published_id: int, intake: Sequence[IntakeMark] = ()
    ) -> PendingCommit:
        """Send the commit of `batch`, with the fence first; return it while the server is busy.

        A small batch may wait to be sent until its outcome is asked for.

        Raises:
            OrderchainError: one of the errors of `PendingCommit.outcome`; then there is nothing to
                ask for.
        """
        ...

    async def move_intake(self, intake: Sequence[IntakeMark]) -> None:
        """Store how far intakes were read whose orders were all repeats.

        Repeating it does no harm. With no mark it only checks that we lead.

        Raises:
            Fenced: the head row is not as this leader left it.
            IntakeMoved: a mark does not follow the stored one.
            RetryError: it is not known whether the marks were stored.
        """
        ...

    async def has_committed(self, batch: Batch) -> bool:
        """Return whether `batch` is in the chain, by parent, epoch and seal, and as safely as an
        acknowledged one: on the synchronous standbys too, where there are some.

        The answer is final only after any process has committed a newer epoch: until then the
        commit that was sent may still land.
        """
        ...

    async def skip_published(self, after_id: int, until_id: int) -> None:
        """Record that the range is not published, and move head_published past it.

        Both in one transaction: receivers read the range from the database.

        Raises:
            Fenced: another one leads the chain.
            RetryError: the database does not answer.
        """
        ...

    async def rows_after(self, after_id: int, at_most: int) -> int:
        """Count the committed rows after `after_id`, stopping soon after `at_most`."""
        ...

    def batches(self, after_id: int) -> AsyncIterator[Batch]:
        """Yield the committed batches after `after_id` in order, to be republished."""
        ...

    async def intake(self, source: str) -> IntakeMark | None:
        """Return how far `source` was read, None if never."""
        ...


class KeyStore(Closable, Protocol):
    """Keys of a chain: rows by the hashes of their keys, and what its leaders know about keys.

    Each call is for a term, and reads or writes on the server of that term alone.

    Raises:
        RetryError: that server is not reached, or another primary answers in its place.
        ConnectError: the settings cannot lead to a connection.
    """

    async def rows(self, term: Term, ids: Sequence[int]) -> list[Event]:
        """Return those rows with these ids that exist."""
        ...

    async def outline(self, term: Term) -> list[tuple[int, int, int]]:
        """Return after_id, until_id and number of rows of every page, oldest first."""
        ...

    async def page(self, term: Term, after_id: int) -> KeyPage:
        """Return the page after `after_id`.

        Raises:
            RetryError: the page is gone, too.
        """
        ...

    async def clients(self, term: Term) -> list[ClientNumber]:
        """Return what is known about every client, as of the last page saved."""
        ...

    async def keys(
        self, term: Term, after_id: int, until_id: int, at_most: int
    ) -> list[tuple[int, str]]:
        """Return id and key of the next rows after `after_id`, at most `at_most` of them."""
        ...

    async def archived_until(self, term: Term) -> int:
        """Return the last id whose row was archived; 0 where none was."""
        ...

    async def save(self, term: Term, page: KeyPage, clients: Sequence[ClientNumber]) -> None:
        """Store a page, and the clients that rose in it, in one transaction.

        Raises:
            RetryError: the epoch was raised, if only by another take-over of our own: nothing is
                stored, and the next page must not follow.
        """
        ...

    async def forget(self, term: Term, until_id: int) -> None:
        """Drop the pages up to `until_id`, unless another leader has raised the epoch."""
        ...


class Lease(Closable, Protocol):
    """The leader's sign of life, over a connection that no commit delays.

    It moves only on the server of the term.
    """

    async def renew(self, term: Term, published_id: int) -> bool:
        """Raise the counter, and return whether an operator asks this leader to step down.

        It also moves head_published up to `published_id`, unless a commit is about to.

        Raises:
            Fenced: `term` no longer leads.
            PrimaryBehind: the chain ends before `published_id`.
            DurabilityError: the database may from now on lose what it acknowledges.
            RetryError: the server of the term is not reached.
        """
        ...

    async def release(self, term: Term, published_id: int) -> None:
        """Hand over, so that a standby need not wait, and move head_published as `renew` does.

        Raises:
            OrderchainError: one of the errors of `renew`.
        """
        ...

    async def notify(self, term: Term, frame: bytes) -> None:
        """Notify receivers that listen on the server of the term how far the chain is.

        `frame` is a heartbeat. It may be lost after this returns: no receiver is waited for.

        Raises:
            ConnectError: the settings cannot lead to a connection.
            RetryError: the server of the term is not reached.
        """
        ...


class SourceRecord(Protocol):
    """One record of a topic of orders, as the broker keeps it."""

    @property
    def offset(self) -> int:
        """Its place in its partition; offsets rise and may skip numbers."""
        ...

    @property
    def timestamp(self) -> int:
        """Milliseconds since 1970 UTC, by the producer or the broker; negative for none."""
        ...

    @property
    def key(self) -> bytes | None:
        """The order's key, if it has one."""
        ...

    @property
    def value(self) -> bytes | None:
        """The order, if there is one."""
        ...


class RecordSource(Closable, Protocol):
    """A topic of orders, with all its partitions, read from given places on; nothing is skipped."""

    async def open(self) -> dict[int, tuple[int, int]]:
        """Open a new connection, check the topic, and return the bounds of each partition.

        The bounds are the offset of its first record and the offset after its last one.

        Raises:
            ConnectError: the settings cannot lead to a connection.
            TopicError: orders of the topic might vanish unread.
            RetryError: the broker does not answer.
        """
        ...

    async def offsets_at(self, time_ms: int) -> dict[int, int]:
        """Return for each partition the offset of its first record at or after a time, or its end.

        Args:
            time_ms: milliseconds since 1970 UTC.

        Raises:
            OrderchainError: one of the errors of `open`.
        """
        ...

    async def seek(self, offsets: Mapping[int, int]) -> None:
        """Read every partition from its offset on.

        Raises:
            RetryError: the source is not open.
        """
        ...

    async def records(
        self, at_most: int, timeout_seconds: float
    ) -> dict[int, tuple[Sequence[SourceRecord], int]]:
        """Return the next records and the offset after them, by partition; empty when none came.

        There may be an offset without a record, where the broker keeps records that are no orders.
        After RetryError, and after a cancellation, what was read but not returned is lost: `open`
        and `seek` come next.

        Raises:
            RetryError: the broker does not answer, the offset does not exist, or the partitions are
                others now.
            TopicError: a record cannot be decoded.
        """
        ...


class FrameSink(Closable, Protocol):
    """The output of frames: one partition, in order."""

    @property
    def frame_bytes_max(self) -> int:
        """The largest frame that the topic accepts, as it was last read."""
        ...

    async def start(self, topic: str, partition: int) -> None:
        """Connect and check the topic.

        Raises:
            ConnectError: the settings cannot lead to a connection.
            TopicError: there is no such topic, or it is unfit.
            RetryError: the broker does not answer.
        """
        ...

    async def last_records(self, topic: str, partition: int, at_most: int) -> list[bytes | None]:
        """Return the values of the last records, oldest first; fewer where there are fewer.

        Needs no `start`.

        Raises:
            RetryError: the broker does not answer in time.
        """
        ...

    async def send(self, frames: Sequence[bytes], traceparents: Sequence[str] = ()) -> None:
        """Return once the broker has acknowledged all of `frames`, which it was given in order.

        When a frame is refused as too large, `frame_bytes_max` is read again.

        Args:
            frames: the values of the records.
            traceparents: the trace of each frame, or nothing for none; it travels beside the frame,
                whose bytes it does not change.

        Raises:
            TopicError: the topic is gone or unfit.
            RetryError: the broker did not acknowledge them in time. Some may be stored anyway, all
                are resent, and the receiver drops what it has seen.
        """
        ...

    async def close(self) -> None:
        """Close; never raises, never waits beyond its deadline.

        A later `send` reconnects, and reads `frame_bytes_max` again.
        """
        ...


class FrameSource(Closable, Protocol):
    """The input of frames: one partition. It may lose, repeat and reorder at will."""

    @property
    def place(self) -> tuple[str, int] | None:
        """Topic and partition that it reads; None where there are none, as in memory."""
        ...

    @property
    def has_rows(self) -> bool:
        """True if frames bring rows. Where they do not, each one that shows new rows makes the
        receiver read them from the database.
        """
        ...

    async def start(self) -> None:
        """Connect and go to the live end.

        Raises:
            ConnectError: the settings cannot lead to a connection.
            TopicError: there is no such topic, or it is another one than the chain's.
            RetryError: the broker does not answer.
        """
        ...

    async def records(self, timeout_seconds: float) -> list[bytes | None]:
        """Return the values of the next records, empty when none came within `timeout_seconds`.

        Raises:
            RetryError: the broker cannot be reached, or sent what cannot be decoded.
        """
        ...


class GapSource(Closable, Protocol):
    """The source of missing rows, for one chain: the database, with a read-only role."""

    @property
    def chain_id(self) -> int:
        """The chain that it reads."""
        ...

    async def standing(self, at_id: int, batch_id: int | None = None) -> ChainPosition:
        """Return the chain's head and the mark after the row `at_id` (0: before the first row).

        With `batch_id` it also returns the seal after the batch that ends there, from the same
        snapshot: a stored place may hold an older seal than that of the last batch. It may count
        the rows after `at_id`, for the lag.

        Raises:
            ChainMissing: the database has no such chain.
            SchemaError: its schema is of another version, or hides rows.
            ConnectError: the settings cannot lead to a connection.
            RetryError: the database does not answer.
            RowsArchived: the row or the batch is before the archive's boundary.
        """
        ...

    def runs(
        self, after: Mark, until_id: int, *, from_primary: bool = False
    ) -> AsyncGenerator[Run, None]:
        """Yield linked runs after `after`, up to and including the row `until_id`.

        `after` is checked first: its row exists, and the batch that ends at its `batch_last_id`,
        the last one before the row or an older one, has its seal. With `from_primary` no standby is
        read or waited for: the rows are used to judge. What was yielded before an error is linked
        and committed. A caller that stops early closes the generator: a page may be being read
        ahead.

        Raises:
            RowsMissing: the primary lacks rows of the range.
            RowsArchived: the range begins before the archive's boundary.
            NotYetReadable: a standby lacks the rows, or a primary is required and none answers.
            RetryError: the database does not answer.
            ForkFound: the primary has another row after `after`, or contradicts itself.
            SealMismatch: the primary has another seal at `after`.
            BatchDamaged: the primary's rows of a batch that is read in full do not give its seal.
                No row of such a batch is yielded, unless it has more rows than the source reads at
                once.
        """
        ...

    async def row_at_or_before(self, until_id: int) -> int:
        """Return the id of the last row that is not above `until_id`; 0 when there is none.

        Raises:
            OrderchainError: one of the errors of `standing`.
        """
        ...

    async def row_before_time(self, time_us: int) -> int:
        """Return the id of the last row that was committed before `time_us`; 0 when there is none.

        Args:
            time_us: microseconds since 1970 UTC, by the sequencer's clock.

        Raises:
            OrderchainError: one of the errors of `standing`.
        """
        ...


class ArchivedSource(Protocol):
    """Rows of one chain that the database has released, after some id up to its boundary.

    `boundary` is the database's standing at the last row that it released: what is returned was
    proven to lead to the seal there.
    """

    @property
    def chain_id(self) -> int:
        """The chain whose rows it holds."""
        ...

    async def mark_at(self, at_id: int, boundary: ChainPosition) -> Mark | None:
        """Return the mark after the row `at_id`; None when there is no such row.

        Raises:
            RowsArchived: it does not hold the row.
            InputError: it does not verify, or belongs to another database.
            RetryError: it cannot be read now.
        """
        ...

    def runs(
        self, after: Mark, until_id: int, boundary: ChainPosition
    ) -> AsyncGenerator[Run, None]:
        """Yield linked runs after `after` up to `until_id`, which is not above the boundary.

        Raises:
            ForkFound: it has another row after `after`.
            SealMismatch: it has another seal at `after`.
            OrderchainError: one of the errors of `mark_at`.
        """
        ...

    async def row_at_or_before(self, until_id: int) -> int:
        """Return the id of the last row that is not above `until_id`; 0 when there is none.

        Raises:
            OrderchainError: one of the errors of `mark_at`.
        """
        ...

    async def row_before_time(self, moment: datetime) -> int:
        """Return the id of the last row that was committed before `moment`; 0 when there is none.

        Raises:
            OrderchainError: one of the errors of `mark_at`.
        """
        ...


class CheckpointStore(Closable, Protocol):
    """Stored state of a receiver, for one chain and one receiver name: its place, unless that is
    kept elsewhere and only reported here, its halts and its gaps.
    """

    @property
    def chain_id(self) -> int:
        """The chain in which the place is."""
        ...

    @property
    def receiver(self) -> str:
        """The receiver's name."""
        ...

    @property
    def keeps_place(self) -> bool:
        """True if a receiver begins at what `load` returns; False where `save` only reports."""
        ...

    @property
    def database_id(self) -> UUID | None:
        """The chain's database that this is in; None before `load`, and in no such database."""
        ...

    async def load(self) -> Mark | None:
        """Return the place that was stored, or reported, last; None for none.

        Raises:
            StillHalted: the receiver has halted, and the halt was not lifted.
            ForeignDatabase: the place was stored in another database.
            SettingError: a receiver of this name keeps its place here, and this one only reports
                it, or the other way round.
            ConnectError: the settings cannot lead to a connection.
            RetryError: the database does not answer.
        """
        ...

    async def save(
        self,
        first_pid: int,
        end: Mark,
        connection: object | None = None,
        states: Mapping[str, bytes] = NO_STATES,
    ) -> None:
        """Move the place from `first_pid` to `end`, by compare-and-set; it never moves back.

        With it the digests of `states` are stored, by group: both or neither.

        Where no place is stored, a start inserts it (`first_pid` is `end.id`), or a save from the
        beginning of the chain (`first_pid` is 0); else it was lost, and CheckpointLost is raised.
        `connection` is the caller's own, inside its transaction: then nothing is stored until that
        commits. Where the place is kept elsewhere, `end` is stored later, without a comparison and
        without a `connection`: that never waits, never raises.

        Raises:
            CheckpointLost: the place is not at `first_pid`, or was lost.
            SettingError: `end` is before `first_pid`, or `connection` outside of a transaction.
            RetryError: it is not known whether the place was stored, as after a cancellation. The
                caller may repeat the call, or make one for a later end.
        """
        ...

    async def record_halt(self, error: HaltError, at_id: int) -> None:
        """Store that the receiver has halted after the row `at_id`.

        Raises:
            RetryError: the database does not answer.
        """
        ...

    def record_gap(self, gap: Gap) -> None:
        """Store `gap` later; never waits, never raises."""
        ...


class ShadowStore(CheckpointStore, Protocol):
    """The store of a shadow: it reads what the receiver that it follows has stored, and keeps
    nothing but digests and the result of the comparison.

    It keeps no place, and reports none: retention never waits for a shadow.
    """

    @property
    def shadow_of(self) -> str:
        """The name of the receiver that it follows."""
        ...

    async def other_states(self, after_id: int) -> StoredStates:
        """Return the next states that the other receiver has stored after `after_id`.

        Raises:
            SettingError: no receiver of that name stores a place.
            RetryError: the database does not answer.
        """
        ...

    def record(self, report: ShadowReport, states: Sequence[StoredState] = ()) -> None:
        """Store the result, and the shadow's own states, later; never waits, never raises."""
        ...


@runtime_checkable
class SnapshotStore(Protocol):
    """Snapshots of a service's state, for one chain."""

    @property
    def chain_id(self) -> int:
        """The chain that the snapshots belong to."""
        ...

    async def newest(self, until_id: int = ID_MAX) -> Snapshot | None:
        """Return the newest whole snapshot up to the row `until_id`, None where there is none.

        Raises:
            SettingError: there are some, and none can be read.
        """
        ...
