"""Key resolution: which orders of a batch are new, and which were stored before."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chain_kernel.errors import KeyConflict, KeyTooOld, NumberOutOfOrder, OrderError
from chain_kernel.model import split_client_key
from sequencer.keys.memory import BEFORE_ALL
from sequencer.order import Ack

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from chain_kernel.model import Event
    from sequencer.keys.memory import KeyMemory
    from sequencer.order import Order
    from sequencer.submission import Entry


Resolution = Ack | int | OrderError
"""The place of an order: already in the chain, or at this index among the new orders; or why it has
no place."""


class KeyResolution:
    """Goes through the entries of a batch in order, and separates new orders from repeats.

    An entry is taken or refused as a whole; if its orders were checked before, each individually.
    `known` holds the committed rows with the requested keys; a repeat gets the place of the first
    one, within the batch or in the chain.
    """

    def __init__(self, memory: KeyMemory, known: Mapping[str, Event]) -> None:
        self._memory = memory
        self._known = known
        self._new_by_key: dict[str, int] = {}
        self.rising: dict[str, int] = {}
        """The highest number of each client among the new orders."""
        self.new: list[Order] = []
        """The orders that become rows."""
        self.placed: list[tuple[Entry, list[Resolution]]] = []
        """Each accepted entry with the places of its orders."""
        self.refused: list[tuple[Entry, OrderError]] = []

    def add(self, entries: Sequence[Entry]) -> None:
        """Place `entries`, which follow those added before."""
        for entry in entries:
            if entry.checked is not None:
                places: list[Resolution] = []
                for order in entry.orders:
                    try:
                        places.append(self._place(order))
                    except OrderError as error:
                        places.append(error)
                self.placed.append((entry, places))
                continue
            mark = len(self.new)
            rising = dict(self.rising) if len(entry.orders) > 1 else None
            try:
                self.placed.append((entry, [self._place(order) for order in entry.orders]))
            except OrderError as error:
                self.refused.append((entry, error))
                self._withdraw(mark, rising)

    def _place(self, order: Order) -> Ack | int:
        key = order.key
        row = self._known.get(key)
        if row is not None:
            if row.payload != order.payload:
                raise KeyConflict(key, row.id)
            return Ack(row.id, row.pid)
        index = self._new_by_key.get(key)
        if index is not None:
            if self.new[index].payload != order.payload:
                raise KeyConflict(key, None)
            return index
        self._check_number(key)
        self._new_by_key[key] = len(self.new)
        self.new.append(order)
        return len(self.new) - 1

    def _check_number(self, key: str) -> None:
        """Raise unless a client's number, which no remembered row has, is above the highest one."""
        split = split_client_key(key)
        if split is None:
            return
        client, number = split
        clients = self._memory.clients
        highest = max(clients.highest(client), self.rising.get(client, BEFORE_ALL))
        if number > highest:
            self.rising[client] = number
            return
        if number > clients.highest(client) or clients.was_never_accepted(
            client, number, self._memory.index.forgotten_until
        ):
            raise NumberOutOfOrder(key, highest)
        raise KeyTooOld(key, highest)

    def _withdraw(self, mark: int, rising: dict[str, int] | None) -> None:
        """Remove the orders of a refused entry: it is taken as a whole or not at all."""
        for order in self.new[mark:]:
            del self._new_by_key[order.key]
        del self.new[mark:]
        if rising is not None:
            self.rising = rising
