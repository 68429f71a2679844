"""Which keys the last rows of a chain had: hashes in memory, from which an id can be found.

The rows themselves are the table of keys; nothing is written beside them at a commit. Measured: a
table with a unique index cost the path half of its rate with random keys, because every key dirties
a page of its own. Here a key costs 12 bytes of memory and no write.

New keys are listed in the order of their rows, beside a dictionary that is brought up to date only
when somebody searches it. A full list becomes a *piece*: hashes sorted in an array, with their
rows' ids beside them. Pieces of like size are merged, so that there are few to
search, and the oldest is dropped whole once the window has moved behind it.

A hash is only a suspicion: two keys may share one. Whoever finds an id here reads the row and
compares. The hash is seeded with a secret of the chain, so that nobody can craft keys that collide.
"""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING, Final

import numpy as np
from xxhash import xxh3_64_intdigest

from orderchain.key_page import KeyPage

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    Hashes = NDArray[np.uint64]
    Ids = NDArray[np.int64]

PIECE_ROWS: Final = 65_536
"""Keys in the list before they become a piece: about 8 MB of objects, 3 ms to sort."""

_FANOUT: Final = 8
"""Pieces of one level that are merged into one of the next: few pieces to search, and each key is
merged once or twice in all."""

_GENERATIONS: Final = 4
"""A piece holds at most this share of the window, so that dropping one forgets at most a quarter
more than must be remembered."""


def hash_keys(encoded_keys: Iterable[bytes], salt: int) -> list[int]:
    """Return the 64-bit hash of every key, which is given as UTF-8."""
    return list(map(xxh3_64_intdigest, encoded_keys, repeat(salt)))


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


class KeyIndex:
    """The keys of at least the last `window_rows` rows."""

    def __init__(self, window_rows: int, *, after_id: int) -> None:
        self._window_rows = window_rows
        # Invariant: the pieces cover consecutive rows, oldest first, and the open list the rows
        # behind them; every row behind forgotten_until is in one of them.
        self._pieces: list[KeyPiece] = []
        self._open_hashes: list[int] = []
        self._open_ids: list[int] = []
        # Of the first rows of the open list, as many as were there at the last search.
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
            wanted_array = np.unique(np.array(hashes, dtype=np.uint64))
            for piece in self._pieces:
                found += piece.find(wanted_array)
        return found

    def install(self, piece: KeyPiece) -> None:
        """Take over a piece that was read back: it lies behind all others."""
        self._pieces.append(piece)
        self._open_after_id = self._last_id = piece.until_id

    def due_merge(self) -> list[KeyPiece]:
        """Return consecutive pieces that should become one; none if all is well."""
        for level in {piece.level for piece in self._pieces}:
            alike = [piece for piece in self._pieces if piece.level == level]
            fits = sum(map(len, alike[:_FANOUT])) <= self._window_rows // _GENERATIONS
            if len(alike) >= _FANOUT and fits:
                return alike[:_FANOUT]
        return []

    def replace(self, merged: KeyPiece) -> None:
        """Put `merged` in the place of the pieces that it was made of."""
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
        """Drop the oldest piece when the rest is a window; return its last id, None if none is."""
        if not self._pieces or self.rows - len(self._pieces[0]) < self._window_rows:
            return None
        self.forgotten_until = self._pieces.pop(0).until_id
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
        # Two rows share a hash, and the dictionary holds but the later one: look at all.
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
