"""Holds the ends of a chain of seals against what they must be: genesis, head, one kept outside."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from uuid import UUID

from chain_verifier.findings import Finding, Kind
from orderchain.seal import genesis_seal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from chain_verifier.config import KeptSeal
    from chain_verifier.truth import Truth

_GENESIS: Final = 0


def seal_ends(truth: Truth, chain_id: int, kept: KeptSeal | None) -> Iterator[Finding]:
    """Yield what does not fit; behind an archive there is no genesis. Raises SourceBroken."""
    seal = truth.seal_at(_GENESIS)
    if seal is not None and seal != genesis_seal(UUID(truth.head.database_id), chain_id):
        yield _mismatch(truth, Kind.SEAL_MISMATCH, _GENESIS)
    if truth.seal_at(truth.head.last_id) != truth.head.seal:
        yield _mismatch(truth, Kind.HEAD_SEAL, truth.head.last_id)
    if kept is not None and truth.seal_at(kept.id) != kept.seal:
        yield _mismatch(truth, Kind.KEPT_SEAL, kept.id)


def _mismatch(truth: Truth, kind: Kind, row_id: int) -> Finding:
    return Finding(kind=kind, source=truth.name, id=row_id, until_id=row_id)
