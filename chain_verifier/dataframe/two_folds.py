"""Two folds over the same orders: the first order of a group after which they differ. Pure.

A comparison after each order would cost two digests each time. So both folds take pieces, and are
compared after some orders: the more, the larger the states are. Where they differ, the orders since
the last comparison are applied again to copies: halved while they are many, then one by one.

Not found is a difference that is gone at the next comparison. Where many orders are halved, the
first one may be missed for a later one, if both are the same in between. Outputs of the orders of
a piece are compared together: one that a later order of it gives is no difference.
"""

from __future__ import annotations

import pickle
from contextlib import suppress
from copy import deepcopy
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeVar

import msgspec
from msgspec import Struct

from chain_kernel.errors import InputError, SettingError
from chain_kernel.text import reason_of
from chain_verifier.dataframe.fold import FoldedGroup, Piece, Result, orders_of
from chain_verifier.dataframe.state_fields import FieldDifference, field_differences, is_alike

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from chain_kernel.model import Event
    from chain_verifier.dataframe.fold import Fold

_Made = TypeVar("_Made")
_State = tuple[Any, int, int]

Part = Literal["state", "output", "error", "pieces"]

_KEPT_ROWS: Final = 1_024
"""Rows of a group from one copy of its states to the next, unless copies take longer."""

_DEEP_KEPT_ROWS: Final = 16_384
"""The same before the first copy by `deepcopy`, which shows how long one takes."""

_KEPT_ROWS_MAX: Final = 2**17
"""These rows are held in memory: 50 MB of small orders."""

_COMPARED_ROWS: Final = 16
"""Rows from one comparison to the next, unless states are large."""

_COMPARED_BATCH: Final = 8_192
"""The same where a fold takes columns: small batches would cost more than the fold."""

_GROWN_ROWS: Final = 8
"""Rows since the last copy, per row from one comparison to the next: up to 127 of small states, up
to 2,047 of those that `deepcopy` copies."""

_SINGLY_ROWS: Final = 64
"""So few orders are compared one by one."""

_BYTES_PER_ROW: Final = 32
_PARTS_PER_ROW: Final = 0.125
"""The size of a state, per row to the next comparison; copies come half as often. So all of them
take about a fifth of the time of a fold of a few microseconds per order. `deepcopy` takes the time
of 250 pickled bytes per part."""

_FIELDS_MAX: Final = 20


class Divergence(Struct, frozen=True, kw_only=True):
    """The first order of a group after which a fold and its candidate differ."""

    group: str
    id: int
    """The order."""
    equal_id: int
    """The group's last order before it after which both were known to be the same; 0 for none."""
    rows: int
    """Rows of the group up to `id`."""
    part: Part
    """The part that differs: the state after it, or its outputs. `error`: the candidate raised.
    `pieces`: they differ between `equal_id` and `id`, but not where orders come one by one, so a
    result depends on how orders are cut into pieces."""
    digest: bytes
    candidate_digest: bytes
    fields: tuple[FieldDifference, ...] = ()
    """The fields of the states that differ, and before these what was given out (`output[0]`)."""
    more: int = 0
    """Number of fields that are not in `fields`."""
    error: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return it for JSON: digests are hex."""
        found: dict[str, Any] = msgspec.to_builtins(self)
        digests = {"digest": self.digest, "candidate_digest": self.candidate_digest}
        return found | {name: digest.hex() for name, digest in digests.items()}


class TwoVersions(Struct, frozen=True):
    """The comparison of two folds over a chain."""

    groups: int
    """Number of groups compared."""
    divergences: tuple[Divergence, ...]
    """At most one a group, in the order of ids."""


class Rows(NamedTuple):
    """The next rows of a group, or one stored state of it."""

    group: str
    ids: Sequence[int] = ()
    events: tuple[Any, Any] = ((), ())
    """The same orders, as the one fold and the other takes them."""
    stored_id: int = 0
    stored: bytes | None = None

    def between(self, first: int, end: int) -> Rows:
        """Return some of the rows."""
        one, other = self.events
        cut = one[first:end], other[first:end]
        return self._replace(ids=self.ids[first:end], events=cut)

    def piece(self, side: int) -> Piece:
        """Return the rows for one of the folds."""
        return Piece(self.group, self.events[side], last_id=int(self.ids[-1]))


def rows_for_two(
    folds: Sequence[Fold[Any]],
    group: str,
    rows: Any,  # noqa: ANN401 - Arrow's record batches
    stored: bytes | None = None,
) -> Rows:
    """Return the rows of a record batch, or the stored state that is its one row."""
    ids = rows.column("id").to_numpy()
    if stored is not None:
        return Rows(group, stored_id=int(ids[-1]), stored=stored)
    one, other = folds
    orders = orders_of(one, rows)
    is_shared = one.columns == other.columns
    return Rows(group, ids, (orders, orders if is_shared else orders_of(other, rows)))


def require_two(
    fold: Fold[Any], candidate: Fold[Any], compared_rows: int | None = None, *, grouped: bool = True
) -> None:
    """Raise SettingError for a candidate that is no other fold, or has another `group`, and for
    `compared_rows` out of bounds.
    """
    is_whole = isinstance(compared_rows, int) and 1 <= compared_rows <= _KEPT_ROWS_MAX
    if compared_rows is not None and not is_whole:
        raise SettingError("compared_rows", compared_rows, f"a number from 1 to {_KEPT_ROWS_MAX}")
    if candidate is fold:
        raise SettingError("candidate", "the fold itself", "another fold")
    if grouped and candidate.group != fold.group:
        name = getattr(fold.group, "__qualname__", fold.group)
        expected = f"that of the fold, {name}: one function for both"
        raise SettingError("group of the candidate", "another function", expected)


def groups_of(folds: Sequence[Fold[Any]], events: Sequence[Event]) -> list[str]:
    """Return the group of each order, by a fold alone or by it and its candidate.

    Raises:
        InputError: `group` raises or returns what is no text; or, with the steps that the candidate
            has for older payloads, it returns another group.
    """
    fold, *candidates = folds
    names = _groups_by(fold, events)
    for candidate in candidates:
        if (candidate.version, candidate.upcasts) == (fold.version, fold.upcasts):
            continue
        for event, name, other in zip(events, names, _groups_by(candidate, events), strict=True):
            if other != name:
                expected = f"{name!r}, as by the fold"
                raise InputError(f"group of the order {event.id} by the candidate", other, expected)
    return names


def _groups_by(fold: Fold[Any], events: Sequence[Event]) -> list[str]:
    return fold.groups_of(events if fold.group is None else fold.upcast_events(events))


def run_two_folds(
    folds: tuple[Fold[Any], Fold[Any]], rows: Iterable[Rows], compared_rows: int | None = None
) -> Iterator[Result]:
    """Yield what `rows` give: the groups one after the other, each in the order of ids.

    The results of the first fold are those of `run_fold`; a candidate ends where it differs.

    Raises:
        InputError: the first fold raises, a state cannot be copied, or either raises where orders
            are applied again.
    """
    group: TwoFoldsGroup | None = None
    for each in rows:
        if group is None or group.name != each.group:
            if group is not None:
                yield from group.end()
            group = TwoFoldsGroup(folds, each.group, compared_rows)
        yield from group.apply(each)
    if group is not None:
        yield from group.end()


def two_versions(groups: int, divergences: Iterable[Divergence]) -> TwoVersions:
    """Return the comparison of a chain. Raises InputError for a candidate that raised."""
    found = sorted(divergences, key=lambda each: (each.id, each.group))
    for each in found:
        if each.error:
            raise refusal("candidate", each.group, each.id, each.error)
    return TwoVersions(groups, tuple(found))


class TwoFoldsGroup:
    """The states of a group by two folds, up to where they differ; then by the first one."""

    def __init__(
        self, folds: tuple[Fold[Any], Fold[Any]], name: str, compared_rows: int | None = None
    ) -> None:
        self.name = name
        self._compared_rows = compared_rows
        self._kept = [_Kept(fold, name) for fold in folds]
        self._pair = _Pair(self._kept)
        self._has_diverged = False
        self._rows = self._equal_id = 0
        """Rows of the group up to the copies, and the last id at which both were the same."""
        self._compared: list[Rows] = []
        self._compared_count = 0
        """Rows since the copies, up to the last comparison."""
        self._held: list[Rows] = []
        self._held_count = 0
        """Rows since then."""
        if (error := self._pair.sides[0].error) is not None:
            raise refusal("fold", name, 0, _text_of(error)) from error

    def apply(self, rows: Rows) -> Iterator[Result]:
        """Apply the next rows, or compare a stored state with that of the first fold.

        Yields and raises as `run_two_folds`.
        """
        if rows.stored is not None:
            yield from self._own.compare(rows.stored_id, rows.stored)
            return
        at, end = 0, len(rows.ids)
        while at < end and not self._has_diverged:
            due = self._compared_rows or max(
                # Since the copies, states may have grown.
                self._compared_count // _GROWN_ROWS,
                *(each.compared_rows for each in self._kept),
            )
            part = rows.between(at, min(end, at + due - self._held_count))
            at += len(part.ids)
            self._held.append(part)
            self._held_count += len(part.ids)
            is_same = self._pair.give(part)
            yield from self._pair.given[0]
            if not is_same:
                yield self._diverged()
            elif self._held_count == due:
                yield from self.compare(max(each.kept_rows for each in self._kept))
        if at < end:
            yield from self._own.apply(rows.between(at, end).piece(0))

    def compare(self, kept_rows: int = 0) -> Iterator[Result]:
        """Compare both after the rows since the last comparison; drop `kept_rows` or more."""
        if self._held:
            if not self._pair.has_one_digest():
                yield self._diverged()
                return
            self._equal_id = int(self._held[-1].ids[-1])
            self._compared += self._held
            self._compared_count += self._held_count
            self._held, self._held_count = [], 0
        if self._compared and self._compared_count >= kept_rows:
            self._kept = self._pair.kept()
            self._rows += self._compared_count
            self._compared, self._compared_count = [], 0

    def end(self) -> Iterator[Result]:
        """Yield the state of the first fold, and a difference before it."""
        yield from self.compare(_KEPT_ROWS_MAX + 1)
        yield self._own.end()

    @property
    def _own(self) -> FoldedGroup[Any]:
        group: FoldedGroup[Any] = self._pair.sides[0].group
        return group

    def _diverged(self) -> Result:
        """Return the first difference within the rows that are held, and drop these.

        Raises InputError where the first fold raises.
        """
        held, rows = self._held, self._rows + self._compared_count
        kept = self._kept
        if self._compared:
            pair = _Pair(kept)
            for each in self._compared:
                pair.give(each)
                pair.require_no_error(self.name, int(each.ids[-1]))
            kept = pair.kept()
        last_id = int(held[-1].ids[-1])
        in_pieces = _Place("pieces", self._pair, self._held_count, self._equal_id, last_id)
        place = _first_of(held, kept, self._equal_id) or in_pieces
        pair = place.pair
        pair.has_one_digest()
        own_error, error = (side.error for side in pair.sides)
        if own_error is not None:
            raise refusal("fold", self.name, place.id, _text_of(own_error)) from own_error
        fields = pair.differences() if error is None else []
        found = Divergence(
            group=self.name,
            id=place.id,
            equal_id=place.equal_id,
            rows=rows + place.rows,
            part=place.part,
            digest=pair.digests[0],
            candidate_digest=pair.digests[1],
            fields=tuple(fields[:_FIELDS_MAX]),
            more=max(len(fields) - _FIELDS_MAX, 0),
            error="" if error is None else _text_of(error),
        )
        self._has_diverged, self._compared, self._held = True, [], []
        return Result("diverges", self.name, place.id, found.rows, found.digest, divergence=found)


def _first_of(held: Sequence[Rows], kept: Sequence[_Kept], equal_id: int) -> _Place | None:
    """Return the first order of `held` after which the two differ; they differ at its end.

    Orders are applied one by one to copies of the states `kept`, of the row `equal_id`. None where
    the two do not differ then.
    """
    same, other = _bounds_by_halves(held, kept)
    count = _count(held)
    # Past the bounds they differ only where pieces matter: a digest per order would take long.
    stride = max(1, (count - other) // _SINGLY_ROWS)
    pair = _Pair(kept)
    singly = (rows.between(at, at + 1) for rows in held for at in range(len(rows.ids)))
    for at, row in enumerate(singly, 1):
        at_id = int(row.ids[0])
        has_same_outputs = pair.give(row)
        is_due = same <= at <= other or at == count or (at > other and at % stride == 0)
        is_same = has_same_outputs and (not is_due or pair.has_one_digest())
        if pair.error is not None:
            return _Place("error", pair, at, equal_id, at_id)
        if not is_same:
            part: Part = "state" if has_same_outputs else "output"
            return _Place(part, pair, at, equal_id, at_id)
        if is_due:
            equal_id = at_id
    return None


def _bounds_by_halves(held: Sequence[Rows], kept: Sequence[_Kept]) -> tuple[int, int]:
    """Return after how many orders the two are the same still, and soon after it differ."""
    low, high = 0, _count(held)
    while high - low > _SINGLY_ROWS:
        middle = (low + high) // 2
        pair = _Pair(kept)
        if all(map(pair.give, _between(held, low, middle))) and pair.has_one_digest():
            low, kept = middle, pair.kept()
        else:
            high = middle
    return low, high


def _between(held: Iterable[Rows], low: int, high: int) -> Iterator[Rows]:
    at = 0
    for rows in held:
        first, end = max(low - at, 0), min(high - at, len(rows.ids))
        if first < end:
            yield rows.between(first, end)
        at += len(rows.ids)


def _count(held: Iterable[Rows]) -> int:
    return sum(len(rows.ids) for rows in held)


class _Kept:
    """The state of a group by one fold at one order, of which copies are made."""

    def __init__(
        self, fold: Fold[Any], name: str, *, pickles: bool | None = None, kept: _State | None = None
    ) -> None:
        """Copy `kept`, without it the start. Raises InputError for what cannot be copied."""
        self._fold, self._name = fold, name
        self._pickles = _pickles(fold, name) if pickles is None else pickles
        self._copy: Callable[[], _State | None] = lambda: None
        size = 0.0
        packed: bytes | None = None
        if kept is not None and self._pickles:
            # A state may hold what its start did not, and what pickle refuses to write, or to read.
            with suppress(Exception):
                found = pickle.dumps(kept, pickle.HIGHEST_PROTOCOL)
                pickle.loads(found)  # noqa: S301 - what was packed here
                packed = found
            self._pickles = packed is not None
        try:
            if packed is not None:
                self._copy = partial(pickle.loads, packed)  # what was packed here
                size = len(packed) / _BYTES_PER_ROW
            elif kept is not None:
                parts: dict[int, Any] = {}
                self._copy = partial(deepcopy, deepcopy(kept, parts))
                size = len(parts) / _PARTS_PER_ROW
        except Exception as error:
            expected = f"one that pickle or deepcopy copies ({reason_of(error)})"
            state = type(kept[0]).__name__ if kept else None
            raise InputError("state", state, expected) from error
        least = _KEPT_ROWS if self._pickles else _DEEP_KEPT_ROWS
        self.kept_rows = min(max(int(2 * size), least), _KEPT_ROWS_MAX)
        """Rows to the next copy."""
        usual = _COMPARED_BATCH if fold.columns else _COMPARED_ROWS
        self.compared_rows = min(max(int(size), usual), _KEPT_ROWS_MAX)
        """Rows to the next comparison."""

    def of(self, kept: _State) -> _Kept:
        """Return a copy of the same group at another order. Raises InputError."""
        return _Kept(self._fold, self._name, pickles=self._pickles, kept=kept)

    def again(self) -> FoldedGroup[Any]:
        """Return the group as it was."""
        return FoldedGroup(self._fold, self._name, self._copy())


def _pickles(fold: Fold[Any], name: str) -> bool:
    """Return whether pickle copies the states of a fold: it is faster than `deepcopy`."""
    try:
        pickle.loads(pickle.dumps(fold.start(name)))  # noqa: S301 - what was packed here
    except Exception:  # noqa: BLE001 - whatever a fold, or the class of its state, raises
        return False
    return True


class _Side:
    """A group by one fold, whose error is kept: nothing is applied after it."""

    def __init__(self, kept: _Kept) -> None:
        self.error: Exception | None = None
        self.kept = kept
        self.group: Any = self._tried(kept.again)

    def give(self, piece: Piece) -> list[Result]:
        """Apply rows; return what they give out."""
        return self._tried(lambda: list(self.group.apply(piece))) or []

    def digest(self) -> bytes:
        """Return the digest of the state; empty after an error."""
        return self._tried(lambda: self.group.digest()) or b""

    def _tried(self, work: Callable[[], _Made]) -> _Made | None:
        if self.error is None:
            try:
                return work()
            except InputError as error:
                # It names the piece; the order is still to be found.
                cause = error.__cause__
                self.error = cause if isinstance(cause, Exception) else error
            except Exception as error:  # noqa: BLE001 - whatever a fold raises
                self.error = error
        return None


class _Pair:
    """A group by both folds."""

    def __init__(self, kept: Iterable[_Kept]) -> None:
        self.sides = [_Side(each) for each in kept]
        self.given: list[list[Result]] = [[], []]
        """Outputs of the last rows."""
        self.digests = [b"", b""]

    @property
    def error(self) -> Exception | None:
        """The error of either."""
        return next((each.error for each in self.sides if each.error is not None), None)

    def give(self, rows: Rows) -> bool:
        """Apply rows; return whether both gave out the same."""
        self.given = [side.give(rows.piece(at)) for at, side in enumerate(self.sides)]
        return self.error is None and is_alike(*self._outputs)

    def has_one_digest(self) -> bool:
        """Return whether both states have the same digest."""
        self.digests = [side.digest() for side in self.sides]
        return self.error is None and self.digests[0] == self.digests[1]

    def require_no_error(self, group: str, at_id: int) -> None:
        """Raise InputError where either has raised, though it had not with the same orders."""
        for which, side in zip(("fold", "candidate"), self.sides, strict=True):
            if side.error is not None:
                raise refusal(which, group, at_id, _text_of(side.error)) from side.error

    def kept(self) -> list[_Kept]:
        """Return copies of both states. Raises InputError."""
        return [each.kept.of(each.group.kept) for each in self.sides]

    def differences(self) -> list[FieldDifference]:
        """Return the fields that differ; none where a state has an odd class."""
        one, other = (side.group.kept[0] for side in self.sides)
        try:
            given = field_differences(*({"output": each} for each in self._outputs))
            return [*given, *field_differences(one, other)]
        except Exception:  # noqa: BLE001 - whatever comparing two values raises
            return []

    @property
    def _outputs(self) -> list[list[Any]]:
        return [[each.output for each in given] for given in self.given]


class _Place(NamedTuple):
    """The first order on which two folds differ, and both of them after it."""

    part: Part
    pair: _Pair
    rows: int
    equal_id: int
    id: int


def refusal(which: str, group: str, at_id: int, error: str) -> InputError:
    """Return the refusal of a fold that raises."""
    of_group = f"group {group!r}" if group else "the chain"
    return InputError(f"error of the {which} at id {at_id} of {of_group}", error, "none")


def _text_of(error: Exception) -> str:
    return f"{type(error).__name__}: {reason_of(error)}"
