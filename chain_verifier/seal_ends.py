"""Holds the ends of a chain of seals against what they must be: genesis, head, one kept outside."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from uuid import UUID

from chain_verifier.findings import Finding, Kind
from orderchain.seal import genesis_seal

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from chain_verifier.config import KeptSeal
    from chain_verifier.truth import Truth

    Computed = Callable[[int], Collection[bytes]]

_GENESIS: Final = 0


def genesis_of(truth: Truth, chain_id: int) -> bytes:
    """Return the seal that the genesis of a chain must have in its database."""
    return genesis_seal(UUID(truth.head.database_id), chain_id)


def seal_ends(
    truth: Truth, chain_id: int, kept: KeptSeal | None, computed: Computed
) -> Iterator[Finding]:
    """Yield what does not fit; behind an archive there is no genesis. Raises SourceBroken.

    `computed` gives the seals that the rows of a batch gave which is stored under another one: that
    one is a finding already, and where rows and end agree the end is none.
    """
    seal = truth.seal_at(_GENESIS)
    if seal is not None and seal != genesis_of(truth, chain_id):
        yield _mismatch(truth, Kind.SEAL_MISMATCH, _GENESIS)
    if not _is_held(truth, truth.head.last_id, truth.head.seal, computed):
        yield _mismatch(truth, Kind.HEAD_SEAL, truth.head.last_id)
    if kept is not None and not _is_held(truth, kept.id, kept.seal, computed):
        yield _mismatch(truth, Kind.KEPT_SEAL, kept.id)


def _is_held(truth: Truth, last_id: int, seal: bytes, computed: Computed) -> bool:
    """Say whether a batch ends with `last_id` under `seal`, or its rows say that it should."""
    stored = truth.seal_at(last_id)
    if stored is None or stored == seal:
        return stored is not None
    return seal in computed(last_id)


def _mismatch(truth: Truth, kind: Kind, row_id: int) -> Finding:
    return Finding(kind=kind, source=truth.name, id=row_id, until_id=row_id)
