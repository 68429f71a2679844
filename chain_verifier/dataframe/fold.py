"""A fold: orders in their order, applied to a state per group. Pure; knows no Spark.

The rows of a group come together, in the order of ids, in pieces of any size. Among them may be
*stored states*: what a service kept as the digest of its state after an id. The state is compared
there, and the first one that differs names where the service went wrong.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, NamedTuple, TypeVar

import msgspec
from msgspec import Struct

from chain_kernel.errors import InputError, OrderchainError, SettingError
from chain_kernel.model import Event
from chain_kernel.text import reason_of
from chain_verifier.sources.content import EVENT

if TYPE_CHECKING:
    from chain_verifier.dataframe.two_folds import Divergence

State = TypeVar("State")

_OWN: Final = __name__.partition(".")[0]
_encode: Final = msgspec.msgpack.Encoder(order="deterministic").encode


def digest_of(state: object) -> bytes:
    """Return the SHA-256 of `state` as MessagePack with sorted keys."""
    return sha256(_encode(state)).digest()


@contextmanager
def naming(what: str) -> Iterator[None]:
    """Raise InputError, which names `what`, for whatever the functions of a fold raise."""
    try:
        yield
    except (OrderchainError, ModuleNotFoundError):
        raise
    except Exception as error:
        text = f"{type(error).__name__}: {reason_of(error)}"
        raise InputError(what, text, "no error") from error


class Fold(Struct, Generic[State], frozen=True, kw_only=True):
    """A state that orders change. The same orders must give the same state and outputs."""

    start: Callable[[str], State]
    """Returns the state of a group before its first order."""
    step: Callable[[State, Any], tuple[State, Sequence[tuple[Any, ...]]]]
    """Applies the next orders of a group, at least one, and returns the state and what they gave
    out: tuples in the order of `outputs`. It may change the state in place. The orders are a list
    of `Event`, or with `columns` an Arrow record batch."""
    digest: Callable[[State], bytes] = digest_of
    """Returns the digest that the services store, too."""
    group: Callable[[Event], str] | None = None
    """Returns the group of an order, such as its symbol. None: the chain is one group."""
    columns: tuple[str, ...] = ()
    """Those of `id, pid, key, event_time_ns, payload` that `step` takes as a record batch: for
    folds that Arrow or NumPy compute, without an object per order. No others cross to Python, but
    for `id`."""
    outputs: str = ""
    """Names and types of what is given out, as Spark writes them: `price BIGINT, buyer STRING`."""
    version: Callable[[bytes], int] | None = None
    """Returns the version of a payload."""
    upcasts: Mapping[int, Callable[[bytes], bytes]] = {}
    """By version, the step to a later one. `group` and `step` see payloads above the highest of
    these alone. Nothing is written back."""
    restore: Callable[[str, bytes], State | None] | None = None
    """Returns the state of a group from a snapshot that the service stored (`Snapshot.state`); None
    where the group is not in it."""

    def __post_init__(self) -> None:
        """Raise SettingError for unknown `columns`, `version` without `upcasts`, or the reverse."""
        if unknown := [name for name in self.columns if name not in EVENT]:
            raise SettingError("columns of the fold", unknown[0], f"some of {', '.join(EVENT)}")
        if (self.version is None) != (not self.upcasts):
            field, other = (
                ("version", "upcasts") if self.version is None else ("upcasts", "version")
            )
            raise SettingError(f"{field} of the fold", None, f"it beside {other}")

    @property
    def modules(self) -> tuple[str, ...]:
        """Top-level modules that its functions are of, and those that they wrap or are partials of,
        but for Python's own and this package.
        """
        functions = (self.start, self.step, self.digest, self.group, self.version, self.restore)
        all_functions = (*functions, *self.upcasts.values())
        within = (inner for each in all_functions for inner in _with_wrapped(each))
        names = {str(getattr(each, "__module__", None)).partition(".")[0] for each in within}
        return tuple(sorted(names - {"__main__", "None", _OWN} - sys.stdlib_module_names))

    def digest_after(self, place: str, state: State) -> bytes:
        """Return the digest of the state after `place`. Raises InputError for what is no bytes."""
        what = f"digest of the state after {place}"
        with naming(what):
            digest = self.digest(state)
        if not isinstance(digest, bytes):
            raise InputError(what, type(digest).__name__, "bytes")
        return digest

    def upcast(self, payload: bytes) -> bytes:
        """Return a payload in the latest version.

        Raises:
            InputError: its version has no step and is not the latest, or a step does not raise it.
        """
        if self.version is None:
            return payload
        version = self.version(payload)
        while version <= max(self.upcasts):
            if version not in self.upcasts:
                expected = f"one of {', '.join(map(str, sorted(self.upcasts)))}, or a later one"
                raise InputError("version of a payload", version, expected)
            payload, before = self.upcasts[version](payload), version
            version = self.version(payload)
            if version <= before:
                raise InputError(f"version after the upcast of {before}", version, "a later one")
        return payload

    def upcast_events(self, events: Sequence[Event]) -> Sequence[Event]:
        """Return orders with payloads in the latest version. Raises InputError."""
        if self.version is None or not events:
            return events
        with naming(f"version of the orders {events[0].id} to {events[-1].id}"):
            return [
                Event(each.id, each.pid, each.key, each.event_time_ns, self.upcast(each.payload))
                for each in events
            ]

    def groups_of(self, events: Sequence[Event]) -> list[str]:
        """Return the group of each order, whose payload is in the latest version.

        Raises:
            InputError: `group` raises an error, or returns what is no text.
        """
        if self.group is None or not events:
            return [""] * len(events)
        with naming(f"group of the orders {events[0].id} to {events[-1].id}"):
            names = list(map(self.group, events))
        for event, name in zip(events, names, strict=True):
            if not isinstance(name, str):
                raise InputError(f"group of the order {event.id}", name, "a text")
        return names


def _upcast_columns(fold: Fold[Any], rows: Any) -> Any:  # noqa: ANN401 - Arrow's record batches
    """Return a record batch of the fold's columns with payloads in the latest version."""
    if fold.version is None or "payload" not in fold.columns:
        return rows
    # Imported only here: a fold over events needs no Arrow.
    import pyarrow as pa

    at = fold.columns.index("payload")
    field = rows.schema.field(at)
    payloads = map(fold.upcast, rows.column(at).to_pylist())
    return rows.set_column(at, field, pa.array(payloads, field.type))


def _with_wrapped(function: Any) -> Iterator[Any]:  # noqa: ANN401 - whatever can be called
    while function is not None:
        yield function
        is_partial = isinstance(function, partial)
        function = function.func if is_partial else getattr(function, "__wrapped__", None)


class Piece(NamedTuple):
    """The next rows of a group, or one stored state of it."""

    group: str
    events: Any
    """Columns that `step` takes; nothing for a stored state."""
    stored_id: int = 0
    """Place of the stored state: after the rows up to this id."""
    stored: bytes | None = None
    """Its digest; None for rows."""
    last_id: int = 0
    """The id of the last row, where `events` are columns."""


Kind = Literal["state", "output", "differs", "diverges"]


class Result(NamedTuple):
    """One result: the state of a group at its end, an output, a stored state that differs, or the
    first order after which a candidate does.
    """

    kind: Kind
    group: str
    id: int
    """The last row of the group, or where the stored state is."""
    rows: int
    """Rows of the group up to there."""
    digest: bytes
    """Digest of the replayed state; empty for outputs."""
    stored: bytes = b""
    equal_id: int = 0
    """The last stored state that was equal, 0 for none: the service went wrong after it."""
    output: tuple[Any, ...] | None = None
    divergence: Divergence | None = None


class FoldedGroup(Generic[State]):
    """The state of a group, from its start or from what was `kept`."""

    def __init__(
        self, fold: Fold[State], name: str, kept: tuple[State, int, int] | None = None
    ) -> None:
        """Begin. Raises InputError, as all its methods do where a function of the fold raises."""
        self._fold = fold
        self.name = name
        self._named = f"group {name!r}" if name else "the chain"
        with naming(f"start of the fold for {self._named}"):
            self._state, self._id, self._rows = kept or (fold.start(name), 0, 0)
        self._equal_id = 0
        self._differs = False

    @property
    def kept(self) -> tuple[State, int, int]:
        """The state, the id of the last row, and the number of rows."""
        return self._state, self._id, self._rows

    def digest(self) -> bytes:
        """Return the digest of the state."""
        return self._fold.digest_after(f"id {self._id} of {self._named}", self._state)

    def apply(self, piece: Piece) -> Iterator[Result]:
        """Apply the next rows; yield what they give out."""
        fold, rows = self._fold, piece.events
        last_id = piece.last_id or piece.events[-1].id
        orders = f"the orders after {self._id} up to {last_id} of {self._named}"
        with naming(f"result of the fold over {orders}"):
            rows = _upcast_columns(fold, rows) if fold.columns else fold.upcast_events(rows)
            self._state, given = fold.step(self._state, rows)
            outputs = list(given)
        self._id = last_id
        self._rows += len(piece.events)
        for output in outputs:
            yield Result("output", self.name, self._id, self._rows, b"", output=output)

    def compare(self, at_id: int, stored: bytes) -> Iterator[Result]:
        """Report the first stored state that differs: those after it differ because of it."""
        if self._differs:
            return
        found = self.digest()
        if found == stored:
            self._equal_id = at_id
            return
        self._differs = True
        yield Result("differs", self.name, at_id, self._rows, found, stored, self._equal_id)

    def end(self) -> Result:
        """Return the state as it is now."""
        return Result("state", self.name, self._id, self._rows, self.digest())


def run_fold(fold: Fold[State], pieces: Iterator[Piece]) -> Iterator[Result]:
    """Yield what `pieces` give: the groups one after the other, each in the order of ids."""
    group: FoldedGroup[State] | None = None
    for piece in pieces:
        if group is None or group.name != piece.group:
            if group is not None:
                yield group.end()
            group = FoldedGroup(fold, piece.group)
        if piece.stored is not None:
            yield from group.compare(piece.stored_id, piece.stored)
        else:
            yield from group.apply(piece)
    if group is not None:
        yield group.end()


def go_on(
    fold: Fold[State], piece: Piece, kept: tuple[State, int, int] | None
) -> tuple[list[Result], tuple[State, int, int]]:
    """Apply the next orders of one group, whose state, last id and count of rows were `kept`.

    Returns what they gave out and the state after them; and what is to be kept.
    """
    group = FoldedGroup(fold, piece.group, kept)
    results = [*group.apply(piece), group.end()]
    return results, group.kept


def events_of(rows: Any) -> list[Event]:  # noqa: ANN401 - Arrow's record batches
    """Return the rows of a record batch as orders."""
    return list(map(Event, *(rows.column(name).to_pylist() for name in EVENT)))


def orders_of(fold: Fold[Any], rows: Any) -> Any:  # noqa: ANN401 - Arrow's record batches
    """Return the rows of a record batch as the `step` of a fold takes them."""
    return rows.select(list(fold.columns)) if fold.columns else events_of(rows)
