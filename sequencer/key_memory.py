"""What a leader knows of the keys of its chain: whether a key is new, or where it stands."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from orderchain.client_key import split_client_key
from sequencer.client_numbers import ClientNumbers
from sequencer.key_forms import forms_of
from sequencer.key_index import KeyIndex, hash_keys

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from orderchain.batch import Batch
    from orderchain.key_page import KeyPage
    from sequencer.columns import OrderColumns
    from sequencer.key_forms import KeyForms


class Claims(Struct, frozen=True, gc=False):
    """What the keys of a batch lay claim to, once it is committed."""

    free: set[str]
    """The free-form keys."""
    rising: dict[str, tuple[int, int]]
    """The highest number of each client in the batch, and the index of its row."""
    hashes: list[int]
    """Of every key, in the order of the rows."""


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

    def claim(self, columns: OrderColumns, *, beside: Claims | None = None) -> Claims | None:
        """Return the claims of the keys when each is surely new, else None.

        The quick answer, for a whole batch at once: free-form keys by their hashes, a client's keys
        by a number above its highest. `beside` is what the batch before this one claims, whose
        outcome is open: a number above its numbers is new whatever becomes of it.
        """
        forms = forms_of(columns.keys)
        if not self._rises(forms, beside.rising if beside is not None else {}):
            return None
        claims = self._claims(columns, forms)
        if len(claims.free) != len(forms.free):
            return None
        if beside is not None and not claims.free.isdisjoint(beside.free):
            return None
        hashes = claims.hashes
        if forms.rising:
            hashes = [hashes[index] for index in forms.free]
        return None if hashes and self.index.find(hashes) else claims

    def claims_of(self, columns: OrderColumns) -> Claims:
        """Return the claims of keys that were found new one by one."""
        return self._claims(columns, forms_of(columns.keys))

    def _rises(self, forms: KeyForms, beside: Mapping[str, tuple[int, int]]) -> bool:
        """Say whether each client's numbers rise from one to the next, and from its highest."""
        highest = self.clients.highest_of(forms.clients)
        for client in highest.keys() & beside.keys():
            highest[client] = max(highest[client], beside[client][0])
        for client, number in zip(forms.clients, forms.numbers, strict=True):
            if number <= highest[client]:
                return False
            highest[client] = number
        return True

    def _claims(self, columns: OrderColumns, forms: KeyForms) -> Claims:
        keys = columns.keys
        # Numbers rise within a batch: the last of a client is its highest.
        last = dict(zip(forms.clients, range(len(forms.clients)), strict=True))
        return Claims(
            free={keys[index] for index in forms.free} if forms.rising else set(keys),
            rising={
                client: (forms.numbers[place], forms.rising[place])
                for client, place in last.items()
            },
            hashes=hash_keys(columns.encoded_keys, self._salt),
        )

    def candidates(self, keys: Iterable[str]) -> set[int]:
        """Return the ids of all rows that may hold one of `keys`; the rows must be compared."""
        wanted = list(keys)
        hashes = hash_keys(map(str.encode, wanted), self._salt)
        ids = {row_id for _, row_id in self.index.find(hashes)}
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
        ids = [event.id for event in batch.events]
        rising = {client: (number, ids[index]) for client, (number, index) in claims.rising.items()}
        return self._take_up(claims.hashes, ids, rising)

    def remember_rows(self, keys: Sequence[str], ids: Sequence[int]) -> KeyPage | None:
        """Take up committed rows that were read back; they follow those taken up before."""
        rising: dict[str, tuple[int, int]] = {}
        for key, row_id in zip(keys, ids, strict=True):
            split = split_client_key(key)
            if split is not None:
                rising[split[0]] = (split[1], row_id)
        return self._take_up(hash_keys(map(str.encode, keys), self._salt), ids, rising)

    def _take_up(
        self, hashes: Sequence[int], ids: Sequence[int], rising: dict[str, tuple[int, int]]
    ) -> KeyPage | None:
        self.clients.rise(
            rising, head_before=self._head, forgotten_until=self.index.forgotten_until
        )
        self._head = ids[-1]
        return self.index.add(hashes, ids)
