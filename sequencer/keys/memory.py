"""Client keys in memory: hashes of keys, and numbers of clients.

The hashes are those of the keys of the last rows of a chain; a hash leads to the id of a row.

The rows themselves are the table of keys; a commit writes nothing besides them. Measured: a table
with a unique index cost the path half of its rate with random keys, because every key dirties a
page of its own. Here a key costs 24 bytes of memory and no write.

A hash is only a hint: two keys may share one. A caller that finds an id here reads the row and
compares. The hash is seeded with a secret of the chain, so no client can craft keys that collide.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from msgspec import Struct
from xxhash import xxh3_64_digest

from chain_kernel import speed
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
"""Rows whose keys are stored together, as a page."""

_AT_ONCE: Final = 65_536
"""Rows that a table takes at once: this many more than its window have a place of their own."""

_PLACES_PER_ROW: Final = 2
"""Fewer make chains longer; with two, half of the new keys meet no row at all."""

_HASH: Final = np.dtype(">u8")


def hash_keys(keys: Sequence[str], salt: int) -> Hashes:
    """Return the 64-bit hash of every key, as UTF-8: XXH3, seeded with `salt`."""
    if speed.native is not None and (packed := speed.native.hash_keys(keys, salt)) is not None:
        return np.frombuffer(packed, np.uint64)
    packed = b"".join(map(xxh3_64_digest, map(str.encode, keys), repeat(salt)))
    return np.frombuffer(packed, _HASH).astype(np.uint64)


def are_distinct(*parts: Hashes) -> bool:
    """Return whether no two hashes of all `parts` are equal."""
    hashes = np.concatenate(parts)
    if speed.native is not None:
        return bool(speed.native.are_distinct(hashes))
    hashes.sort()
    return not (hashes[1:] == hashes[:-1]).any()


def _zeros(count: int, kind: type[np.uint32 | np.int64]) -> NDArray[Any]:
    """Return zeros that take memory only where they are written, and give it back once unused.

    NumPy's own take pages of 2 MiB: 4.4 MB for the first hundred rows of each chain, not 0.4. Each
    row writes to a page of 4 KiB of its own until all of them are there.
    """
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    return np.frombuffer(mmap.mmap(-1, count * np.dtype(kind).itemsize, flags=private), kind)


class KeyTable:
    """The last `window_rows` rows by the hashes of their keys; older ones are forgotten.

    The rows with one place, of which there are two for each row, form a chain: the place leads to
    the newest, and each row to the one before it. Rows are numbered from 1, and each row's part of
    the columns is overwritten once it is forgotten. So nothing is ever removed: a chain ends at the
    first row that is forgotten. Numbers are kept modulo 2^32.
    """

    def __init__(self, window_rows: int) -> None:
        rows = window_rows + _AT_ONCE
        self.window_rows = window_rows
        self.count = 0
        """Rows that are remembered."""
        self._last = 0
        self._newest = _zeros(rows * _PLACES_PER_ROW, np.uint32)
        self._before = _zeros(rows, np.uint32)
        self._tags = _zeros(rows, np.uint32)
        self._ids = _zeros(rows, np.int64)

    def add(self, hashes: Hashes, ids: Ids) -> int | None:
        """Add rows in the order of their ids; return the last id that is forgotten, if any is."""
        for start in range(0, len(hashes), _AT_ONCE):
            self._add(hashes[start : start + _AT_ONCE], ids[start : start + _AT_ONCE])
            self.count = min(self.count, self.window_rows)
        if self._last == self.count:
            return None
        return int(self._ids[(self._last - self.count) % len(self._ids)])

    def find(self, hashes: Hashes) -> list[int]:
        """Return the ids of all rows that may have one of `hashes`: half of it is compared."""
        if speed.native is not None:
            columns = (self._newest, self._before, self._tags)
            slots = speed.native.find(*columns, hashes, self._last, self.count)
            return [int(self._ids[slot]) for slot in slots]
        places, tags = self._places(hashes)
        ages = np.uint32(self._last % 2**32) - self._newest.take(places)
        at = np.flatnonzero(ages < self.count)
        ages, tags = ages[at], tags[at]
        found: list[int] = []
        while len(ages):
            slots = (self._last - ages.astype(np.int64)) % len(self._ids)
            found += self._ids[slots[self._tags.take(slots) == tags]].tolist()
            older = np.uint32(self._last % 2**32) - self._before.take(slots)
            # A number comes again after 2^32 rows: a chain leads to older rows alone.
            at = np.flatnonzero((older < self.count) & (older > ages))
            ages, tags = older[at], tags[at]
        return found

    def _add(self, hashes: Hashes, ids: Ids) -> None:
        first = self._last + 1
        self._last += len(hashes)
        self.count += len(hashes)
        slots = np.arange(first, self._last + 1) % len(self._ids)
        self._ids[slots] = ids
        if speed.native is not None:
            speed.native.add(self._newest, self._before, self._tags, hashes, first)
            return
        rows = np.arange(first, self._last + 1).astype(np.uint32)
        places, self._tags[slots] = self._places(hashes)
        self._before[slots] = self._newest.take(places)
        self._newest[places] = rows
        passed = np.flatnonzero(self._newest.take(places) != rows)
        if len(passed):
            # The last row of a place now leads to what was there before: link all of them.
            alike = np.flatnonzero(np.isin(places, places[passed]))
            alike = alike[np.argsort(places[alike], kind="stable")]
            earlier, later = alike[:-1], alike[1:]
            is_next = places[earlier] == places[later]
            self._before[slots[later[is_next]]] = rows[earlier[is_next]]

    def _places(self, hashes: Hashes) -> tuple[NDArray[np.intp], NDArray[np.uint32]]:
        """Return the place of every hash, by its upper half, and its lower half."""
        places = (hashes >> np.uint64(32)) * np.uint64(len(self._newest)) >> np.uint64(32)
        return places.astype(np.intp), hashes.astype(np.uint32)


class KeyIndex:
    """The keys of at least the last `window_rows` rows, and the pages that they are stored in."""

    def __init__(self, window_rows: int, *, after_id: int) -> None:
        self.table = KeyTable(window_rows)
        # The rows since the last page.
        self._open: list[tuple[Hashes, Ids]] = []
        self._open_rows = 0
        self._open_after_id = after_id
        self.forgotten_until = after_id
        """Rows up to this id are not remembered."""

    @property
    def rows(self) -> int:
        """Number of rows remembered."""
        return self.table.count

    def add(self, hashes: Hashes, ids: Sequence[int]) -> KeyPage | None:
        """Remember the rows of a commit; return the page that became full with them, if any."""
        packed = np.arange(ids[0], ids[-1] + 1) if isinstance(ids, range) else np.array(ids)
        self._remember(hashes, packed)
        self._open.append((hashes, packed))
        self._open_rows += len(ids)
        return self._close_open() if self._open_rows >= PIECE_ROWS else None

    def install(self, page: KeyPage) -> None:
        """Add a page that was read back: it comes after all others."""
        spans = np.frombuffer(page.spans, ">i8").reshape(-1, 2).astype(np.int64)
        counts = spans[:, 1]
        firsts = np.repeat(spans[:, 0] - (np.cumsum(counts) - counts), counts)
        ids = firsts + np.arange(len(firsts), dtype=np.int64)
        self._remember(np.frombuffer(page.hashes, _HASH).astype(np.uint64), ids)
        self._open_after_id = page.until_id

    def find(self, hashes: Hashes) -> list[int]:
        """Return the id of every remembered row whose hash may be among `hashes`."""
        return self.table.find(hashes)

    def _remember(self, hashes: Hashes, ids: Ids) -> None:
        forgotten = self.table.add(hashes, ids)
        if forgotten is not None:
            self.forgotten_until = forgotten

    def _close_open(self) -> KeyPage:
        hashes, ids = (np.concatenate(parts) for parts in zip(*self._open, strict=True))
        self._open, self._open_rows = [], 0
        page = _page(self._open_after_id, hashes, ids)
        self._open_after_id = page.until_id
        return page


def _page(after_id: int, hashes: Hashes, ids: Ids) -> KeyPage:
    """Return the page of rows that follow `after_id`, at least one, in the order of their ids."""
    starts = np.flatnonzero(np.diff(ids, prepend=ids[0] - 2) != 1)
    counts = np.diff(starts, append=len(ids))
    return KeyPage(
        after_id=after_id,
        until_id=int(ids[-1]),
        spans=np.column_stack((ids[starts], counts)).astype(">i8").tobytes(),
        hashes=hashes.astype(_HASH).tobytes(),
    )


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
        is_between = known.known_from < number < known.number
        return is_between and known.known_from_id >= forgotten_until


_NUL: Final = "\0"
"""No key contains it."""


class KeyForms(Struct, frozen=True, gc=False):
    """The keys of a batch by their form. The keys of each client have numbers that rise."""

    free: Sequence[int]
    """Indexes of the free-form keys, among all keys."""
    firsts: dict[str, int]
    """The first number of each client, which is its lowest."""
    lasts: dict[str, tuple[int, int]]
    """The last number of each client, and the index of its key."""


def forms_of(keys: Sequence[str]) -> KeyForms | None:
    """Return the forms of `keys`; None if the numbers of a client do not rise.

    No key contains NUL. If all have one form, which is common, they are split together, at a third
    of the cost of one by one.
    """
    if speed.native is not None:
        found = speed.native.forms(keys)
        if found is None:
            return None
        free, firsts, lasts = found
        return KeyForms(range(len(keys)) if free is None else free, firsts, lasts)
    text = _NUL.join(keys)
    separators = text.count(SEPARATOR)
    if separators == 0:
        return KeyForms(range(len(keys)), {}, {})
    if separators == len(keys) and all([SEPARATOR in key for key in keys]):
        # One in each: clients and numbers alternate.
        parts = text.replace(SEPARATOR, _NUL).split(_NUL)
        clients, texts = parts[0::2], parts[1::2]
        numbers = _numbers_of(texts, may_have_zeros=f"{SEPARATOR}0" in text)
        if numbers is not None and all(clients):
            return _rising((), range(len(keys)), clients, numbers)
    split = list(map(split_client_key, keys))
    named = [(at, *parts) for at, parts in enumerate(split) if parts is not None]
    free = [at for at, parts in enumerate(split) if parts is None]
    clients, numbers = [part[1] for part in named], [part[2] for part in named]
    return _rising(free, [part[0] for part in named], clients, numbers)


def _rising(
    free: Sequence[int], places: Sequence[int], clients: Sequence[str], numbers: Sequence[int]
) -> KeyForms | None:
    """Return the forms of keys, of which those at `places` have `clients` and `numbers`."""
    firsts = dict(zip(reversed(clients), reversed(numbers), strict=True))
    highest = dict.fromkeys(firsts, BEFORE_ALL)
    for client, number in zip(clients, numbers, strict=True):
        if number <= highest[client]:
            return None
        highest[client] = number
    ends = dict(zip(clients, places, strict=True))
    return KeyForms(free, firsts, {client: (highest[client], at) for client, at in ends.items()})


def _numbers_of(texts: list[str], *, may_have_zeros: bool) -> list[int] | None:
    """Return the numbers in `texts`; None if one may not be a number of a client."""
    digits = "".join(texts)
    if not (digits.isdecimal() and digits.isascii() and all(texts)):
        return None
    if may_have_zeros and any(text[0] == "0" and len(text) > 1 for text in texts):
        return None
    numbers = list(map(int, texts))
    return numbers if max(numbers) <= ID_MAX else None


class Claims(Struct, frozen=True, gc=False):
    """The claims that the keys of a batch make once it is committed."""

    free: Hashes
    """The hashes of the free-form keys."""
    rising: dict[str, tuple[int, int]]
    """The highest number of each client in the batch, and the index of its row."""
    hashes: Hashes
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
        if forms is None or not self._rises(forms, beside.rising if beside is not None else {}):
            return None
        claims = self._claims(columns, forms)
        if not len(claims.free):
            return claims
        # Two keys may share a hash: then each is looked at.
        if not are_distinct(claims.free, *(() if beside is None else (beside.free,))):
            return None
        return None if self.index.find(claims.free) else claims

    def claims_of(self, columns: OrderColumns) -> Claims:
        """Return the claims of keys that were found new one by one: so numbers rise."""
        forms = forms_of(columns.keys)
        if forms is None:
            raise RuntimeError("numbers that were found to rise do not")
        return self._claims(columns, forms)

    def _rises(self, forms: KeyForms, beside: Mapping[str, tuple[int, int]]) -> bool:
        """Return whether each client's first number is above its highest, and that `beside`."""
        highest = self.clients.highest
        for client, number in forms.firsts.items():
            if number <= highest(client) or (client in beside and number <= beside[client][0]):
                return False
        return True

    def _claims(self, columns: OrderColumns, forms: KeyForms) -> Claims:
        hashes = hash_keys(columns.keys, self._salt)
        free = hashes[list(forms.free)] if forms.lasts else hashes
        return Claims(free, forms.lasts, hashes)

    def candidates(self, keys: Iterable[str]) -> tuple[set[int], set[int]]:
        """Return the ids of all rows that may hold one of `keys`; the rows must be compared.

        First those that are remembered, then each client's highest, which may be older.
        """
        wanted = list(keys)
        remembered = set(self.index.find(hash_keys(wanted, self._salt)))
        highest: set[int] = set()
        for key in wanted:
            split = split_client_key(key)
            known = self.clients.get(split[0]) if split else None
            # A client's highest number is remembered forever, whatever the window is.
            if split and known and known.number == split[1]:
                highest.add(known.id)
        return remembered, highest

    def remember(self, batch: Batch, claims: Claims) -> KeyPage | None:
        """Add the rows of a committed batch, whose keys made `claims`.

        Returns the page that became full with them, to be stored.
        """
        ids = batch.columns.ids
        rising = {client: (number, ids[index]) for client, (number, index) in claims.rising.items()}
        return self._take_up(claims.hashes, ids, rising)

    def remember_rows(self, keys: Sequence[str], ids: Sequence[int]) -> KeyPage | None:
        """Add committed rows that were read back; they follow those added before."""
        rising: dict[str, tuple[int, int]] = {}
        for key, row_id in zip(keys, ids, strict=True):
            split = split_client_key(key)
            # Numbers need not have risen while keys were not compared: then the first one counts.
            if split is not None and split[1] > rising.get(split[0], (BEFORE_ALL, 0))[0]:
                rising[split[0]] = (split[1], row_id)
        return self._take_up(hash_keys(keys, self._salt), ids, rising)

    def page_of_rows(
        self, after_id: int, keys: Sequence[str], ids: Sequence[int]
    ) -> tuple[KeyPage, list[ClientNumber]]:
        """Return the page of rows that were added before, and their clients as they are now."""
        names = {split[0] for key in keys if (split := split_client_key(key)) is not None}
        clients = [known for name in names if (known := self.clients.get(name)) is not None]
        return _page(after_id, hash_keys(keys, self._salt), np.array(ids)), clients

    def _take_up(
        self, hashes: Hashes, ids: Sequence[int], rising: dict[str, tuple[int, int]]
    ) -> KeyPage | None:
        self.clients.rise(
            rising, head_before=self._head, forgotten_until=self.index.forgotten_until
        )
        self._head = ids[-1]
        return self.index.add(hashes, ids)
