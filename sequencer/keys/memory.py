"""What is known of client keys, held in memory: hashes of keys, and numbers of clients.

The hashes are those of the keys of the last rows of a chain; a hash leads to the id of a row.

The rows themselves are the table of keys; a commit writes nothing besides them. Measured: a table
with a unique index cost the path half of its rate with random keys, because every key dirties a
page of its own. Here a key costs 14 bytes of memory and no write.

New keys are listed in the order of their rows, with a dictionary that is updated only before a
search. A full list becomes a *piece*: hashes sorted in an array, with their rows' ids beside them.
Pieces of similar size are merged, so that there are few to search, and the oldest is dropped as a
whole once the window has moved past it. Most keys are new, and a *filter* says so without a search:
one bit of many for each hash.

A hash is only a hint: two keys may share one. A caller that finds an id here reads the row and
compares. The hash is seeded with a secret of the chain, so no client can craft keys that collide.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Final

import numpy as np
from msgspec import Struct
from xxhash import xxh3_64_intdigest

from chain_kernel.limits import ID_MAX
from chain_kernel.model import SEPARATOR, ClientNumber, KeyPage, split_client_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray

    from chain_kernel.seal import Batch
    from sequencer.order import OrderColumns

    Hashes = NDArray[np.uint64]
    Ids = NDArray[np.int64]


PIECE_ROWS: Final = 65_536
"""Keys in the list before they become a piece: about 8 MB of objects, 3 ms to sort."""

_FANOUT: Final = 8
"""Pieces of one level that are merged into one of the next: few pieces to search, and each key is
merged once or twice in total."""

_GENERATIONS: Final = 4
"""A piece holds at most a quarter of the window, so that at most a quarter more than the window is
remembered until a piece is dropped whole."""


_FILTER_BITS: Final = 16
"""Bits of a filter for each row: a full one lets one of 16 new hashes be searched for nothing."""

_FILTER_BITS_MAX: Final = 2**32 - 1
"""A place is found by the product of this and 32 bits of a hash."""


def hash_keys(keys: Iterable[str], salt: int) -> list[int]:
    """Return the 64-bit hash of every key, as UTF-8."""
    return list(map(xxh3_64_intdigest, map(str.encode, keys), repeat(salt)))


class KeyPiece:
    """The keys of consecutive rows, searchable by hash. Immutable."""

    __slots__ = ("after_id", "hashes", "ids", "level", "until_id")

    def __init__(
        self, hashes: Hashes, ids: Ids, *, after_id: int, until_id: int, level: int
    ) -> None:
        order = np.argsort(hashes)
        self.hashes = hashes[order]
        # Offsets fit into half the bytes unless the ids are spread widely.
        offsets = ids[order] - after_id
        self.ids = offsets.astype(np.uint32) if until_id - after_id < 2**32 else offsets
        self.after_id = after_id
        self.until_id = until_id
        self.level = level

    def __len__(self) -> int:
        return len(self.hashes)

    def find(self, wanted: Hashes) -> list[tuple[int, int]]:
        """Return (hash, id) for every row whose hash is among `wanted`, which is sorted."""
        starts = self.hashes.searchsorted(wanted)
        inside = starts < len(self.hashes)
        hits = np.flatnonzero(inside)[self.hashes[starts[inside]] == wanted[inside]]
        return [
            (int(wanted[hit]), int(self.ids[place]) + self.after_id)
            for hit in hits
            for place in range(
                int(starts[hit]), int(self.hashes.searchsorted(wanted[hit], side="right"))
            )
        ]


def page_of(hashes: Hashes, ids: Ids, *, after_id: int, until_id: int) -> KeyPage:
    """Return the page of rows in the order of their ids."""
    starts = np.flatnonzero(np.diff(ids, prepend=ids[0] - 2) != 1)
    counts = np.diff(starts, append=len(ids))
    return KeyPage(
        after_id=after_id,
        until_id=until_id,
        spans=np.column_stack((ids[starts], counts)).astype(">i8").tobytes(),
        hashes=hashes.astype(">u8").tobytes(),
    )


def piece_of(page: KeyPage) -> KeyPiece:
    """Return the searchable form of `page`."""
    spans = np.frombuffer(page.spans, ">i8").reshape(-1, 2).astype(np.int64)
    counts = spans[:, 1]
    firsts = np.repeat(spans[:, 0] - (np.cumsum(counts) - counts), counts)
    return KeyPiece(
        np.frombuffer(page.hashes, ">u8").astype(np.uint64),
        firsts + np.arange(len(firsts), dtype=np.int64),
        after_id=page.after_id,
        until_id=page.until_id,
        level=0,
    )


def merge_pieces(pieces: Sequence[KeyPiece]) -> KeyPiece:
    """Return one piece with the rows of `pieces`, which are consecutive. May run in a thread."""
    return KeyPiece(
        np.concatenate([piece.hashes for piece in pieces]),
        np.concatenate([piece.ids.astype(np.int64) + piece.after_id for piece in pieces]),
        after_id=pieces[0].after_id,
        until_id=pieces[-1].until_id,
        level=max(piece.level for piece in pieces) + 1,
    )


class KeyFilter:
    """Says of most hashes that no row has them. It holds the hashes of consecutive rows."""

    __slots__ = ("_bits", "_bytes", "_rows_left", "until_id")

    def __init__(self, rows: int) -> None:
        self._bits = np.uint64(min(rows * _FILTER_BITS, _FILTER_BITS_MAX))
        self._bytes = np.zeros(int(self._bits) // 8 + 1, np.uint8)
        self._rows_left = rows
        self.until_id = 0
        """The last row."""

    def has_room(self, piece: KeyPiece) -> bool:
        """Return whether it may take the rows of `piece` as well."""
        return self._rows_left >= len(piece)

    def add(self, piece: KeyPiece) -> None:
        """Add the rows of `piece`, which follow those added before."""
        at, masks = self._places(piece.hashes)
        # The hashes are sorted, and so are the places: those in one byte are neighbours.
        firsts = np.flatnonzero(np.diff(at, prepend=-1))
        self._bytes[at[firsts]] |= np.bitwise_or.reduceat(masks, firsts)
        self._rows_left -= len(piece)
        self.until_id = piece.until_id

    def may_have(self, hashes: Hashes) -> NDArray[np.bool_]:
        """Return for each hash whether a row may have it; False is certain."""
        at, masks = self._places(hashes)
        found: NDArray[np.bool_] = self._bytes.take(at) & masks != 0
        return found

    def _places(self, hashes: Hashes) -> tuple[NDArray[np.intp], NDArray[np.uint8]]:
        """Return the byte of every hash, and its bit in it."""
        places = (hashes >> np.uint64(32)) * self._bits >> np.uint64(32)
        masks = np.uint8(1) << (places & np.uint64(7)).astype(np.uint8)
        return (places >> np.uint64(3)).astype(np.intp), masks


class KeyIndex:
    """The keys of at least the last `window_rows` rows."""

    def __init__(self, window_rows: int, *, after_id: int) -> None:
        self._window_rows = window_rows
        # Invariant: the pieces cover consecutive rows, oldest first, and the open list the rows
        # after them; every row after forgotten_until is in one of them.
        self._pieces: list[KeyPiece] = []
        # Invariant: every row of a piece is in one of them; oldest first.
        self._filters: list[KeyFilter] = []
        self._open_hashes: list[int] = []
        self._open_ids: list[int] = []
        # The first rows of the open list: as many as were there at the last search.
        self._searchable: dict[int, int] = {}
        self._searchable_rows = 0
        self._open_after_id = after_id
        self._last_id = after_id
        self.forgotten_until = after_id
        """Rows up to this id are not remembered."""

    @property
    def rows(self) -> int:
        """Number of rows remembered."""
        return sum(map(len, self._pieces)) + len(self._open_ids)

    def add(self, hashes: Sequence[int], ids: Sequence[int]) -> KeyPage | None:
        """Remember the rows of a commit; return the page that became full with them, if any."""
        self._open_hashes += hashes
        self._open_ids += ids
        self._last_id = ids[-1]
        return self._close_open() if len(self._open_ids) >= PIECE_ROWS else None

    def find(self, hashes: Sequence[int]) -> list[tuple[int, int]]:
        """Return (hash, id) of every remembered row whose hash is among `hashes`."""
        found = self._find_open(hashes)
        if self._pieces:
            wanted = np.array(hashes, dtype=np.uint64)
            may_be_known = [one.may_have(wanted) for one in self._filters]
            wanted = np.unique(wanted[np.logical_or.reduce(may_be_known)])
            if len(wanted):
                for piece in self._pieces:
                    found += piece.find(wanted)
        return found

    def install(self, piece: KeyPiece) -> None:
        """Add a piece that was read back: it comes after all others."""
        self._pieces.append(piece)
        self._open_after_id = self._last_id = piece.until_id
        if not self._filters or not self._filters[-1].has_room(piece):
            # As many as are remembered at most: so the one before is dropped once this is full.
            rows = self._window_rows + self._window_rows // _GENERATIONS
            self._filters.append(KeyFilter(max(rows, len(piece))))
        self._filters[-1].add(piece)

    def due_merge(self) -> list[KeyPiece]:
        """Return consecutive pieces that should become one; none if there is nothing to merge."""
        for level in {piece.level for piece in self._pieces}:
            alike = [piece for piece in self._pieces if piece.level == level]
            fits = sum(map(len, alike[:_FANOUT])) <= self._window_rows // _GENERATIONS
            if len(alike) >= _FANOUT and fits:
                return alike[:_FANOUT]
        return []

    def replace(self, merged: KeyPiece) -> None:
        """Replace the pieces that `merged` was made of with it."""
        self._pieces = sorted(
            [
                *(
                    piece
                    for piece in self._pieces
                    if piece.until_id <= merged.after_id or piece.after_id >= merged.until_id
                ),
                merged,
            ],
            key=lambda piece: piece.after_id,
        )

    def forget_old(self) -> int | None:
        """Drop the oldest piece if the rest covers the window; return its last id, else None."""
        if not self._pieces or self.rows - len(self._pieces[0]) < self._window_rows:
            return None
        self.forgotten_until = self._pieces.pop(0).until_id
        self._filters = [one for one in self._filters if one.until_id > self.forgotten_until]
        return self.forgotten_until

    def _find_open(self, hashes: Sequence[int]) -> list[tuple[int, int]]:
        """Return (hash, id) of every row of the open list whose hash is among `hashes`."""
        known, rows = self._searchable, self._searchable_rows
        known.update(zip(self._open_hashes[rows:], self._open_ids[rows:], strict=True))
        self._searchable_rows = len(self._open_ids)
        if known.keys().isdisjoint(hashes):
            return []
        wanted = known.keys() & set(hashes)
        if len(known) == self._searchable_rows:
            return [(hash_, known[hash_]) for hash_ in wanted]
        # Two rows share a hash, and the dictionary holds only the later one: look at all.
        rows_ = zip(self._open_hashes, self._open_ids, strict=True)
        return [(hash_, row_id) for hash_, row_id in rows_ if hash_ in wanted]

    def _close_open(self) -> KeyPage:
        page = page_of(
            np.array(self._open_hashes, np.uint64),
            np.array(self._open_ids, np.int64),
            after_id=self._open_after_id,
            until_id=self._last_id,
        )
        self.install(piece_of(page))
        self._open_hashes, self._open_ids = [], []
        self._searchable, self._searchable_rows = {}, 0
        return page


BEFORE_ALL: Final = -1
"""The number before a client's first: a number itself may be 0."""


class ClientNumbers:
    """The highest accepted number of every client, kept forever: one small entry per client."""

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
        """Add what was stored."""
        self._clients.update((known.client, known) for known in numbers)

    def rise(
        self, highest: Mapping[str, tuple[int, int]], *, head_before: int, forgotten_until: int
    ) -> None:
        """Note for each client its new highest number and the id of its row.

        A client that was never seen has no row up to `head_before`, the head before these rows.
        If rows of a client were forgotten since, what is known of it begins again after the last
        row that it had: numbers rise with ids.
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
        """Return the clients that rose since the last call, to be stored."""
        touched = [self._clients[client] for client in self._touched]
        self._touched.clear()
        return touched

    def was_never_accepted(self, client: str, number: int, forgotten_until: int) -> bool:
        """Return whether `number`, which no remembered row has, was certainly never accepted.

        It is certain only if every row of the client that could hold it is still remembered.
        """
        known = self._clients.get(client)
        if known is None:
            return True
        return number > known.known_from and known.known_from_id >= forgotten_until


_NUL: Final = "\0"
"""No key contains it."""


class KeyForms(Struct, frozen=True, gc=False):
    """The keys of a batch by their form; an index is a key's place among all keys."""

    free: Sequence[int]
    """Indexes of the free-form keys."""
    rising: Sequence[int]
    """Indexes of the others, whose clients and numbers follow in the same order."""
    clients: Sequence[str]
    numbers: Sequence[int]


def forms_of(keys: Sequence[str]) -> KeyForms:
    """Return the forms of `keys`; none of them contains NUL.

    If all have one form, which is common, they are split together, at a third of the cost of one by
    one.
    """
    text = _NUL.join(keys)
    separators = text.count(SEPARATOR)
    if separators == 0:
        return KeyForms(range(len(keys)), (), (), ())
    if separators == len(keys) and all([SEPARATOR in key for key in keys]):
        # One in each: clients and numbers alternate.
        parts = text.replace(SEPARATOR, _NUL).split(_NUL)
        clients, texts = parts[0::2], parts[1::2]
        numbers = _numbers_of(texts, may_have_zeros=f"{SEPARATOR}0" in text)
        if numbers is not None and all(clients):
            return KeyForms((), range(len(keys)), clients, numbers)
    return _forms_one_by_one(keys)


def _numbers_of(texts: list[str], *, may_have_zeros: bool) -> list[int] | None:
    """Return the numbers in `texts`; None if one may not be a number of a client."""
    digits = "".join(texts)
    if not (digits.isdecimal() and digits.isascii() and all(texts)):
        return None
    if may_have_zeros and any(text[0] == "0" and len(text) > 1 for text in texts):
        return None
    numbers = list(map(int, texts))
    return numbers if max(numbers) <= ID_MAX else None


def _forms_one_by_one(keys: Sequence[str]) -> KeyForms:
    free: list[int] = []
    rising: list[int] = []
    clients: list[str] = []
    numbers: list[int] = []
    for index, key in enumerate(keys):
        split = split_client_key(key)
        if split is None:
            free.append(index)
            continue
        rising.append(index)
        clients.append(split[0])
        numbers.append(split[1])
    return KeyForms(free, rising, clients, numbers)


class Claims(Struct, frozen=True, gc=False):
    """What the keys of a batch claim once it is committed."""

    free: set[str]
    """The free-form keys."""
    rising: dict[str, tuple[int, int]]
    """The highest number of each client in the batch, and the index of its row."""
    hashes: list[int]
    """The hash of every key, in the order of the rows."""


class KeyMemory:
    """Keys of the last rows of a chain, and the numbers of its clients, as of its head.

    Invariant: covers every committed row of the window. Only the leader holds one, and no other
    commits: so a key that it does not find within the window is in no row there.
    """

    def __init__(self, window_rows: int, salt: int, *, after_id: int) -> None:
        self._salt = salt
        self.index = KeyIndex(window_rows, after_id=after_id)
        self.clients = ClientNumbers()
        self._head = after_id

    def claim(self, columns: OrderColumns, *, beside: Claims | None = None) -> Claims | None:
        """Return the claims of the keys if each is certainly new, else None.

        The quick answer, for a whole batch at once: free-form keys by their hashes, a client's keys
        by a number above its highest. `beside` is what the batch before this one claims, whose
        outcome is open: a number above its numbers is new whatever the outcome is.
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
        """Return whether each client's numbers rise from one to the next, and from its highest."""
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
            hashes=hash_keys(columns.keys, self._salt),
        )

    def candidates(self, keys: Iterable[str]) -> set[int]:
        """Return the ids of all rows that may hold one of `keys`; the rows must be compared."""
        wanted = list(keys)
        hashes = hash_keys(wanted, self._salt)
        ids = {row_id for _, row_id in self.index.find(hashes)}
        for key in wanted:
            split = split_client_key(key)
            known = self.clients.get(split[0]) if split else None
            # A client's highest number is remembered forever, whatever the window is.
            if split and known and known.number == split[1]:
                ids.add(known.id)
        return ids

    def remember(self, batch: Batch, claims: Claims) -> KeyPage | None:
        """Add the rows of a committed batch, whose keys made `claims`.

        Returns the page that became full with them, to be stored.
        """
        ids = [event.id for event in batch.events]
        rising = {client: (number, ids[index]) for client, (number, index) in claims.rising.items()}
        return self._take_up(claims.hashes, ids, rising)

    def remember_rows(self, keys: Sequence[str], ids: Sequence[int]) -> KeyPage | None:
        """Add committed rows that were read back; they follow those added before."""
        rising: dict[str, tuple[int, int]] = {}
        for key, row_id in zip(keys, ids, strict=True):
            split = split_client_key(key)
            if split is not None:
                rising[split[0]] = (split[1], row_id)
        return self._take_up(hash_keys(keys, self._salt), ids, rising)

    def _take_up(
        self, hashes: Sequence[int], ids: Sequence[int], rising: dict[str, tuple[int, int]]
    ) -> KeyPage | None:
        self.clients.rise(
            rising, head_before=self._head, forgotten_until=self.index.forgotten_until
        )
        self._head = ids[-1]
        return self.index.add(hashes, ids)
