"""The state of a fold as of a moment: orders proven by their seals, in plain Python."""

from __future__ import annotations

from bisect import bisect_right
from contextlib import aclosing
from datetime import UTC, datetime
from operator import attrgetter, ge, gt
from typing import TYPE_CHECKING, Annotated, Any, Final, Generic, Self, TypeVar

from msgspec import Meta, Struct
from msgspec.structs import replace

from chain_kernel.clock import SystemClock, ns_of
from chain_kernel.config import Config
from chain_kernel.errors import (
    ForkFound,
    InputError,
    NotYetReadable,
    RetryError,
    SealMismatch,
    SettingError,
)
from chain_kernel.limits import ID_MAX
from chain_verifier.dataframe.fold import naming

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from chain_kernel.model import ChainPosition, Event, Mark, Snapshot
    from chain_kernel.ports import GapSource, SnapshotStore
    from chain_verifier.dataframe.fold import Fold

State = TypeVar("State")
_Time = Annotated[datetime, Meta(tz=True)]
_id_of: Final = attrgetter("id")


class Moment(Config, frozen=True):
    """A place in a chain up to which orders count. Exactly one answer is given."""

    id: Annotated[int, Meta(ge=1, le=ID_MAX)] | None = None
    """Up to the last order whose id is not above this."""
    committed: _Time | None = None
    """Up to the last batch that was committed at or before this, by the sequencer's clock."""
    event: _Time | None = None
    """The orders whose own time (`event_time_ns`) is not after this, in the order of ids. All are
    read: such times may fall along a chain."""

    def __post_init__(self) -> None:
        """Raise SettingError unless there is exactly one answer, whose time there is in UTC."""
        super().__post_init__()
        given = [name for name in self.__struct_fields__ if getattr(self, name) is not None]
        if len(given) != 1:
            expected = "one of id=ID, committed=DATETIME, event=DATETIME"
            raise SettingError("moment", " and ".join(given) or None, expected)
        try:
            for time in filter(None, (self.committed, self.event)):
                time.astimezone(UTC)
        except OverflowError:
            raise SettingError("moment", str(self), "a time of the years 1 to 9999 UTC") from None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the moment that a text names: an id, `committed:TIME` or `event:TIME`.

        A time is in ISO 8601, in UTC if it names no zone. Raises SettingError.
        """
        clock, _, rest = text.partition(":")
        try:
            if clock not in ("committed", "event"):
                return cls(id=int(text))
            time = datetime.fromisoformat(rest)
        except ValueError:
            expected = (
                "an id, or a time with its clock: committed:2026-01-31T09:30Z (of the commit) or "
                "event:2026-01-31T09:30Z (of the order)"
            )
            raise SettingError("moment", text, expected) from None
        time = time if time.tzinfo else time.replace(tzinfo=UTC)
        return cls(committed=time) if clock == "committed" else cls(event=time)

    def __str__(self) -> str:
        if self.id is not None:
            return f"id {self.id}"
        return f"committed {self.committed}" if self.committed else f"event {self.event}"


class StateAsOf(Struct, Generic[State], frozen=True, kw_only=True):
    """The state of a group, or of a whole chain, as of a moment."""

    state: State
    group: str
    """Empty for the whole chain."""
    id: int
    """The last order up to the moment, whichever group it is of."""
    after_id: int
    """The order after which the fold began: that of the snapshot, 0 for the start of the chain."""
    rows: int
    """Orders of the group that were folded."""
    digest: bytes
    is_final: bool
    """False if orders up to the moment may still come: for a commit's time, those of a commit that
    was begun by then, until a later batch is there; for an event's time always."""


async def fold_up_to(
    source: GapSource,
    fold: Fold[State],
    group: str | None,
    moment: Moment,
    snapshots: SnapshotStore | None = None,
) -> StateAsOf[State]:
    """Fold the orders of a chain up to `moment`, from the newest snapshot up to there on.

    Orders are read up to the end of the batch of the last one, so that the seals prove all of
    them; for a commit's time up to the end of the batch after it, whose time is proven, too. For an
    event's time, which a snapshot says nothing about, all orders of the chain are.

    Raises:
        SettingError: the moment is before the first order or not over, the group has no orders, or
            fold, group and snapshots do not fit together.
        InputError: the fold raised an error, or a snapshot is of rows that the chain does not have.
        RetryError: a server broke off within a batch, which nothing proves then.
        ForkFound, SealMismatch: the primary has other rows than the standby that was read.
        OrderchainError: one of the errors of `GapSource.standing` and `GapSource.runs`.
    """
    folding = _Folding(fold, group)
    until_id, is_final = await _last_id_up_to(source, moment)
    event_ns = None if moment.event is None else ns_of(moment.event)
    snapshot = None
    if snapshots is not None and event_ns is None:
        folding.require_restore(snapshots.chain_id, source.chain_id)
        # The batch of the last order proves its commit's time: it is read whatever snapshots have.
        snapshot = await snapshots.newest(until_id - (moment.committed is not None))
    at_id, batch_id = (snapshot.mark.id, snapshot.mark.batch_last_id) if snapshot else (0, None)
    position = await source.standing(at_id, batch_id)
    _require_reached(position, moment, until_id, is_final=is_final)
    end = _start_of(position, snapshot)
    if snapshot is not None:
        folding.restore(snapshot)
    # Rows of a batch that is larger than a page come before its proof. The time of a commit was
    # looked up without one: that it is not above the moment is proven with its batch, that the next
    # one is above it with the next batch.
    is_enough = _is_enough(moment)
    end_id = end.id if is_enough(end.id, until_id) else position.head.last_id
    is_of_primary = True
    async with aclosing(source.runs(end, end_id)) as runs:
        async for run in runs:
            if run.begins_within:
                text = f"the server broke off within the batch of id {run.events[0].id}: ask again"
                raise RetryError(f"chain {source.chain_id}: {text}")
            orders = run.events[bisect_right(run.events, folding.id, key=_id_of) :]
            if event_ns is not None:
                orders = [each for each in orders if each.event_time_ns <= event_ns]
            folding.apply(orders[: bisect_right(orders, until_id, key=_id_of)])
            end, is_of_primary = run.end, is_of_primary and run.source == "primary"
            if is_enough(end.batch_last_id, until_id):
                break
        else:
            if end.id < end_id:
                text = f"no rows came after {end.id}, and the head is {end_id}: ask again"
                raise RetryError(f"chain {source.chain_id}: {text}")
    if not is_of_primary:
        await _require_held(source, end)
    if not folding.id:
        expected = f"a moment at or after the first order of chain {source.chain_id}"
        raise SettingError("moment", str(moment), expected)
    return folding.result(is_final=is_final)


async def _last_id_up_to(source: GapSource, moment: Moment) -> tuple[int, bool]:
    """Return an id that no order up to the moment is above, and whether none can come."""
    if moment.committed is None:
        return moment.id or ID_MAX, moment.id is not None
    committed_ns = ns_of(moment.committed)
    if committed_ns > SystemClock.wall_ns():
        raise SettingError("moment", str(moment), "a time that is over")
    # Read first: a batch that comes after the search may be of a time up to the moment.
    head_id = (await source.standing(0)).head.last_id
    found = await source.row_before_time(committed_ns // 1_000 + 1)
    return found, found < head_id


def _is_enough(moment: Moment) -> Callable[[int, int], bool]:
    """Return what compares the last id that is there with the last one up to the moment."""
    return ge if moment.committed is None else gt


def _require_reached(
    position: ChainPosition, moment: Moment, until_id: int, *, is_final: bool
) -> None:
    """Raise SettingError, NotYetReadable, RetryError unless all orders up to the moment are there.

    Another server may answer than the one that has found the place of a commit's time.
    """
    chain_id, head_id = position.head.chain_id, position.head.last_id
    if is_final and not _is_enough(moment)(head_id, until_id):
        if moment.id is not None and position.is_primary:
            raise SettingError("id", moment.id, f"an id up to the head of the chain, {head_id}")
        raise NotYetReadable(head_id, until_id)
    if not is_final and not position.is_primary:
        text = f"only a standby answers, at {head_id}: it may lack orders up to this moment"
        raise RetryError(f"chain {chain_id}: {text}")


def _start_of(position: ChainPosition, snapshot: Snapshot | None) -> Mark:
    """Return the end of a batch: a part of the batch around a snapshot would prove nothing.

    The position is at the snapshot's row and batch.
    """
    found, head = position.mark, position.head
    if snapshot is None:
        if found is None:
            raise RetryError(f"chain {head.chain_id}: its first orders are being archived")
        return found
    mark = snapshot.mark
    if found is None and not position.is_primary:
        raise NotYetReadable(head.last_id, mark.id)
    if found is None or position.batch_seal != mark.seal:
        # Where it was restored to an older state, it may have gone on with other rows.
        lacks = "no such row" if position.batch_seal == mark.seal else "another seal there"
        expected = f"one of chain {head.chain_id}: the database has {lacks}"
        raise InputError("snapshot", f"after id {mark.id}", expected)
    return replace(mark, id=mark.batch_last_id)


async def _require_held(source: GapSource, end: Mark) -> None:
    """Raise ForkFound, SealMismatch where the primary has not the batch before `end`.

    A standby that still follows a server which was replaced has seals for rows that were lost.
    While no primary answers, the standby's own word is all there is.
    """
    position = await source.standing(end.batch_last_id, end.batch_last_id)
    if not position.is_primary or position.batch_seal == end.seal:
        return
    if position.mark is None:
        raise ForkFound(source.chain_id, end.batch_last_id, end.id, None)
    found = position.batch_seal or b""
    raise SealMismatch(source.chain_id, end.batch_last_id, end.seal, found)


class _Folding(Generic[State]):
    """A fold under way, for one group."""

    def __init__(self, fold: Fold[State], group: str | None) -> None:
        if fold.group is None and group is not None:
            expected = "none: the fold has one state, of the whole chain"
            raise SettingError("group", group, expected)
        if fold.group is not None and group is None:
            raise SettingError("group", None, "the group: the fold has a state for each")
        self._fold = fold
        self._group = group or ""
        self._states: list[State] = []
        """The state; none before the first order of the group."""
        self._rows = 0
        self._after_id = self.id = 0
        """The last order of the chain that was met, of any group."""

    def require_restore(self, chain_id: int, expected_id: int) -> None:
        """Raise SettingError unless snapshots of `chain_id` can be used."""
        if chain_id != expected_id:
            raise SettingError("chain of the snapshots", chain_id, f"chain {expected_id}")
        if self._fold.restore is None:
            expected = "a function that makes the state of a snapshot, or no snapshots"
            raise SettingError("restore of the fold", None, expected)

    def restore(self, snapshot: Snapshot) -> None:
        """Begin with the state of a snapshot. Raises InputError."""
        self._after_id = self.id = snapshot.mark.id
        if self._fold.restore is not None:
            what = f"state of the snapshot after id {self.id}"
            with naming(what):
                state = self._fold.restore(self._group, snapshot.state)
            if state is None and self._fold.group is None:
                raise InputError(what, None, "one that `restore` makes of it: there are no groups")
            self._states = [] if state is None else [state]

    def apply(self, orders: Sequence[Event]) -> None:
        """Apply the next orders of the chain, which may be none. Raises InputError."""
        if not orders:
            return
        self.id = orders[-1].id
        orders = self._fold.upcast_events(orders)
        names = self._fold.groups_of(orders)
        orders = [each for each, name in zip(orders, names, strict=True) if name == self._group]
        if not orders:
            return
        with naming(f"result of the fold over the orders {orders[0].id} to {orders[-1].id}"):
            (state,) = self._states or [self._fold.start(self._group)]
            self._rows += len(orders)
            given = _columns_of(orders, self._fold.columns) if self._fold.columns else orders
            state, _ = self._fold.step(state, given)
            self._states = [state]

    def result(self, *, is_final: bool) -> StateAsOf[State]:
        """Return the state and what it is of. Raises SettingError, InputError."""
        if not self._states:
            expected = f"a group that has orders up to id {self.id}"
            raise SettingError("group", self._group, expected)
        (state,) = self._states
        return StateAsOf(
            state=state, group=self._group, id=self.id, after_id=self._after_id, rows=self._rows,
            digest=self._fold.digest_after(f"id {self.id}", state), is_final=is_final,
        )  # fmt: skip


def _columns_of(orders: Sequence[Event], names: Sequence[str]) -> Any:  # noqa: ANN401 - Arrow's
    # Imported only here: a fold over events needs no Arrow.
    import pyarrow as pa

    kinds = {"key": pa.string(), "payload": pa.binary()}  # as from Spark; the others are numbers
    schema = pa.schema([(name, kinds.get(name, pa.int64())) for name in names])
    columns = [list(map(attrgetter(name), orders)) for name in names]
    return pa.record_batch(columns, schema=schema)
