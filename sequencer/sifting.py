"""Orders that each stand for themselves: the bad ones are taken out before they join a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, cast

from msgspec import Struct
from msgspec.structs import replace

from orderchain.batch import IntakeReject
from orderchain.errors import OrderError
from orderchain.limits import ID_MAX
from orderchain.printable import printable
from sequencer.columns import OrderColumns, columns_of
from sequencer.order import Order, check_order

if TYPE_CHECKING:
    from orderchain.batch import IntakeMark

_REASON_CHARACTERS_MAX: Final = 1_000
"""Of a reject's reason: a sentence and a key, and a poisoned topic must not fill the database."""

REJECT_BYTES: Final = 256
"""What a refused order counts in a queue bounded by bytes: it is stored too."""


class Refusal(Struct, frozen=True):
    """What could not even be made an order: given to `submit_each` in the order's place.

    Tracked by the garbage collector: an error knows the frames it passed, which may know this.
    """

    key: str | None
    """The key that it would have had, for whoever looks for it."""
    error: OrderError


class Sifted(Struct, frozen=True):
    """The orders of one call, good and bad apart."""

    orders: Sequence[Order]
    """The good ones, in their order."""
    indexes: Sequence[int]
    """Where each of them stood in the call."""
    refused: dict[int, Refusal]
    """The bad ones by their place in the call."""
    bytes: int
    """What the call takes of a queue."""
    columns: OrderColumns | None = None
    """The good ones as columns, where nobody had to look at each of them."""

    def mark(self, mark: IntakeMark, positions: Sequence[int]) -> IntakeMark:
        """Return `mark` with the bad ones as rejects."""
        rejects = tuple(
            reject_of(positions[index], refusal.key, refusal.error)
            for index, refusal in self.refused.items()
        )
        return replace(mark, rejects=mark.rejects + rejects) if rejects else mark

    def together(self, outcomes: list[Any]) -> list[Any]:
        """Return the outcomes of all, in the order of the call, given those of the good ones."""
        if not self.refused:
            return outcomes
        by_index = dict(zip(self.indexes, outcomes, strict=True))
        by_index.update((index, refusal.error) for index, refusal in self.refused.items())
        return [by_index[index] for index in range(len(by_index))]


def sift(given: Sequence[Order | Refusal]) -> Sifted:
    """Take the bad ones out of `given`; as a whole where none is, which is common and cheap."""
    # What is no Order at all is refused by the check, too.
    orders = cast("Sequence[Order]", given)
    if not orders:
        return Sifted((), (), {}, 0)
    try:
        columns = columns_of(orders)
    except OrderError:
        return _sift_each(given)
    return Sifted(orders, range(len(orders)), {}, columns.total_bytes, columns)


def reject_of(position: int, key: str | None, error: OrderError) -> IntakeReject:
    """Return what to store of a refused order."""
    # Escaped: what PostgreSQL's text cannot hold would fail the whole batch.
    reason = printable(error, _REASON_CHARACTERS_MAX)
    return IntakeReject(position=position, key=key, reason=reason)


def check_positions(positions: Sequence[int] | None, count: int, mark: IntakeMark | None) -> None:
    """Raise OrderError unless an intake's positions can be stored, one for each of its orders."""
    if mark is None:
        return
    if positions is None or len(positions) != count:
        given = "none" if positions is None else len(positions)
        raise OrderError("positions", given, f"one for each of {count} orders")
    for position in (*positions, mark.position):
        if type(position) is not int or not 0 <= position <= ID_MAX:
            raise OrderError("position", position, f"an integer from 0 to {ID_MAX}")


def _sift_each(given: Sequence[Order | Refusal]) -> Sifted:
    good: list[tuple[int, Order]] = []
    refused: dict[int, Refusal] = {}
    size = 0
    for index, order in enumerate(given):
        if isinstance(order, Refusal):
            refused[index] = Refusal(_storable(order.key), order.error)
            continue
        try:
            size += check_order(order)
        except OrderError as error:
            refused[index] = Refusal(_storable(getattr(order, "key", None)), error)
        else:
            good.append((index, order))
    size += REJECT_BYTES * len(refused)
    return Sifted([order for _, order in good], [index for index, _ in good], refused, size)


def _storable(key: object) -> str | None:
    """Return `key` where it is one that an order may have."""
    try:
        check_order(Order(key, b""))  # type: ignore[arg-type] # that is the question
    except OrderError:
        return None
    return str(key)
