"""How far each client's own numbers have come."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from orderchain.key_page import ClientNumber

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

BEFORE_ALL: Final = -1
"""The number before a client's first: a number itself may be 0."""


class ClientNumbers:
    """The highest accepted number of every client, for good: one small entry a client."""

    def __init__(self) -> None:
        self._clients: dict[str, ClientNumber] = {}
        self._touched: set[str] = set()

    def __len__(self) -> int:
        return len(self._clients)

    def highest(self, client: str) -> int:
        """Return the highest accepted number of `client`, BEFORE_ALL if it has none."""
        known = self._clients.get(client)
        return BEFORE_ALL if known is None else known.number

    def highest_of(self, clients: Iterable[str]) -> dict[str, int]:
        """Return the highest accepted number of each of `clients`, as `highest` does."""
        get = self._clients.get
        return {
            client: BEFORE_ALL if (known := get(client)) is None else known.number
            for client in set(clients)
        }

    def get(self, client: str) -> ClientNumber | None:
        """Return what is known of `client`."""
        return self._clients.get(client)

    def load(self, numbers: Iterable[ClientNumber]) -> None:
        """Take over what was stored."""
        self._clients.update((known.client, known) for known in numbers)

    def rise(
        self, highest: Mapping[str, tuple[int, int]], *, head_before: int, forgotten_until: int
    ) -> None:
        """Note for each client its new highest number and the id of its row.

        A client that was never seen has no row up to `head_before`, the head before these rows.
        Where rows of a client were forgotten since, what is known of it begins anew behind the
        last row that it had: numbers rise with ids.
        """
        for client, (number, row_id) in highest.items():
            known = self._clients.get(client)
            if known is not None and number <= known.number:
                continue  # a row read again after a restart
            if known is None:
                known_from, known_from_id = BEFORE_ALL, head_before
            elif known.known_from_id >= forgotten_until:
                known_from, known_from_id = known.known_from, known.known_from_id
            else:
                known_from, known_from_id = known.number, known.id
            self._clients[client] = ClientNumber(client, number, row_id, known_from, known_from_id)
        self._touched.update(highest)

    def take_touched(self) -> list[ClientNumber]:
        """Return the clients that rose since this was last asked, to be stored."""
        touched = [self._clients[client] for client in self._touched]
        self._touched.clear()
        return touched

    def was_never_accepted(self, client: str, number: int, forgotten_until: int) -> bool:
        """Say whether `number`, which no remembered row has, was surely never accepted.

        Sure only where every row of the client that could hold it is still remembered.
        """
        known = self._clients.get(client)
        if known is None:
            return True
        return number > known.known_from and known.known_from_id >= forgotten_until
