"""What a source turned out to hold."""

from __future__ import annotations

from msgspec import Struct

from chain_verifier.bucket import Bucket, row_count
from chain_verifier.findings import Findings


class Examined(Struct, frozen=True, kw_only=True):
    """One source after its scan."""

    buckets: list[Bucket]
    findings: Findings
    notes: tuple[str, ...]
    """What is no fault, but should be known."""
    rows_beyond: int
    """Rows behind the head; whether they are wrong is not decided here."""
    beyond_id: int | None
    """The highest id of those."""
    is_whole: bool = False
    """All was shown to be one path at the first look, which leaves nothing to be looked for."""

    @property
    def rows(self) -> int:
        """Rows of the chain between start and head."""
        return row_count(self.buckets)
