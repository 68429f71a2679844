"""Gives ids and pids: the sequencer's decisions, as values in and values out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orderchain.batch import Batch
from orderchain.errors import OrderchainError
from orderchain.event import Event
from orderchain.limits import ID_MAX
from orderchain.page_image import column_pages
from orderchain.seal import next_seal
from sequencer.columns import OrderColumns, columns_of
from sequencer.id_strategy import check_partition_ids, first_id, least_id_of_term

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orderchain.batch import Term
    from sequencer.id_strategy import IdStrategy
    from sequencer.order import Order


class SequencerCore:
    """Where the chain will stand once every batch assembled so far is committed.

    A batch is assembled while the one before it commits. If that one fails, `rewind` takes the
    later one back, and its orders are assembled anew: an id is only ever given by a commit.
    """

    def __init__(
        self, term: Term, *, takeover_skip_ids: int, id_strategy: IdStrategy = "sequential"
    ) -> None:
        check_partition_ids(id_strategy, term.partition_ids)
        self._term = term
        self._id_strategy = id_strategy
        # Invariant: the seal is the one after the batch that ends at last_id; none of the three
        # falls but by a rewind.
        self._last_id = term.last_id
        self._last_seal = term.last_seal
        self._last_committed_at_us = term.last_committed_at_us
        self._takeover_skip_ids = takeover_skip_ids

    def assemble(self, orders: OrderColumns | Sequence[Order], wall_ns: int) -> Batch:
        """Return the batch of `orders`, in their order, behind all that was assembled before.

        `wall_ns` is the wall clock: it stamps the batch and the orders without a time, and may have
        ids left out; it orders nothing. Raises OrderchainError when the chain has no ids left.
        """
        columns = orders if isinstance(orders, OrderColumns) else columns_of(orders)
        first = self._first_id(len(orders), wall_ns)
        last_id = first + len(orders) - 1
        if last_id >= ID_MAX:
            raise OrderchainError(f"chain {self._term.chain_id} has no ids left")
        ids = tuple(range(first, last_id + 1))
        times = [wall_ns if time_ns is None else time_ns for time_ns in columns.times_ns]
        pids = (self._last_id, *ids[:-1])
        pages = column_pages(
            ids, pids, columns.encoded_keys, times, columns.payloads, is_linked=True
        )
        # A clock that steps back must not make committed_at fall along the chain.
        committed_at_us = max(wall_ns // 1_000, self._last_committed_at_us)
        seal = next_seal(
            self._last_seal,
            epoch=self._term.epoch,
            first_id=first,
            last_id=last_id,
            row_count=len(ids),
            committed_at_us=committed_at_us,
            pages=pages,
        )
        batch = Batch(
            chain_id=self._term.chain_id,
            epoch=self._term.epoch,
            pid=self._last_id,
            first_id=first,
            last_id=last_id,
            seal_before=self._last_seal,
            seal=seal,
            committed_at_us=committed_at_us,
            events=list(map(Event, ids, pids, columns.keys, times, columns.payloads)),
            pages=pages,
        )
        self._last_id, self._last_seal = last_id, seal
        self._last_committed_at_us = committed_at_us
        return batch

    def _first_id(self, row_count: int, wall_ns: int) -> int:
        """Return the id of the next row."""
        least_id = self._last_id + 1
        if self._last_id == self._term.last_id:
            least_id = least_id_of_term(
                self._id_strategy,
                self._term,
                takeover_skip_ids=self._takeover_skip_ids,
                wall_ns=wall_ns,
            )
        return first_id(
            self._id_strategy,
            term=self._term,
            least_id=least_id,
            wall_ns=wall_ns,
            row_count=row_count,
        )
