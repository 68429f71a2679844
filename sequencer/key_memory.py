"""What a leader knows of the keys of its chain: whether a key is new, or where it stands."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING

from msgspec import Struct

from orderchain.client_key import client_key, split_client_key
from sequencer.client_numbers import ClientNumbers
from sequencer.key_index import KeyIndex, hash_keys
from sequencer.order import key_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from orderchain.batch import Batch
    from orderchain.key_page import KeyPage


id_of = attrgetter("id")


class Claims(Struct, frozen=True, gc=False):
    """What the keys of a batch lay claim to, once it is committed."""

    keys: set[str]
    rising: dict[str, int]
    """The highest number of each client in the batch."""

    def overlap(self, other: Claims) -> bool:
        """Say whether both cannot be new: one of them must wait for the other's outcome."""
        if not self.keys.isdisjoint(other.keys):
            return True
        return not self.rising.keys().isdisjoint(other.rising)


class KeyMemory:
    """Keys of the last rows of a chain, and the numbers of its clients, as of its head.

    Invariant: covers every committed row of the window. Only the leader holds one, and nobody else
    commits: so a key that it does not find within the window stands in no row there.
    """

    def __init__(self, window_rows: int, salt: int, *, after_id: int) -> None:
        self._salt = salt
        self.index = KeyIndex(window_rows, after_id=after_id)
        self.clients = ClientNumbers()
        self._head = after_id

    def claim(self, keys: Sequence[str]) -> Claims | None:
        """Return the claims of `keys` when each is surely new, else None.

        The quick answer, for a whole batch at once: free-form keys by their hashes, a client's keys
        by a number above its highest.
        """
        distinct = set(keys)
        if len(distinct) != len(keys):
            return None
        rising: dict[str, int] = {}
        free: list[str] = []
        highest = self.clients.highest
        for key in keys:
            split = split_client_key(key)
            if split is None:
                free.append(key)
                continue
            client, number = split
            before = rising.get(client)
            if number <= (highest(client) if before is None else before):
                return None
            rising[client] = number
        if free and self.index.find(hash_keys(free, self._salt)):
            return None
        return Claims(distinct, rising)

    def candidates(self, keys: Iterable[str]) -> set[int]:
        """Return the ids of all rows that may hold one of `keys`; the rows must be compared."""
        wanted = list(keys)
        ids = {row_id for _, row_id in self.index.find(hash_keys(wanted, self._salt))}
        for key in wanted:
            split = split_client_key(key)
            known = self.clients.get(split[0]) if split else None
            # A client's highest number is remembered for good, whatever the window is.
            if split and known and known.number == split[1]:
                ids.add(known.id)
        return ids

    def remember(self, batch: Batch, claims: Claims) -> KeyPage | None:
        """Take up the rows of a committed batch, whose keys made `claims`.

        Returns the page that became full with them, to be stored.
        """
        keys = list(map(key_of, batch.events))
        ids = list(map(id_of, batch.events))
        rising: dict[str, tuple[int, int]] = {}
        if claims.rising:
            id_by_key = dict(zip(keys, ids, strict=True))
            rising = {
                client: (number, id_by_key[client_key(client, number)])
                for client, number in claims.rising.items()
            }
        return self._take_up(keys, ids, rising)

    def remember_rows(self, keys: Sequence[str], ids: Sequence[int]) -> KeyPage | None:
        """Take up committed rows that were read back; they follow those taken up before."""
        rising: dict[str, tuple[int, int]] = {}
        for key, row_id in zip(keys, ids, strict=True):
            split = split_client_key(key)
            if split is not None:
                rising[split[0]] = (split[1], row_id)
        return self._take_up(keys, ids, rising)

    def _take_up(
        self, keys: Sequence[str], ids: Sequence[int], rising: dict[str, tuple[int, int]]
    ) -> KeyPage | None:
        self.clients.rise(
            rising, head_before=self._head, forgotten_until=self.index.forgotten_until
        )
        self._head = ids[-1]
        return self.index.add(hash_keys(keys, self._salt), ids)
