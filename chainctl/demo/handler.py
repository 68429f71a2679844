"""What the matching service feeds: which handler works off an input is chosen by its columns."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, Final, Protocol

from chainctl.demo.digest import PayloadDigest
from chainctl.demo.matching import FLOW_COLUMNS, Matching
from chainctl.demo.venue import FEED_COLUMNS, Venue

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping


class Handler(Protocol):
    """Works off payloads in order; the same payloads give the same state and digest.

    How the payloads are cut into calls makes no difference.
    """

    name: ClassVar[str]
    """What it does, for the summary."""

    def apply(self, payloads: Iterable[bytes]) -> None:
        """Work off `payloads` in their order. A payload that makes no sense is counted."""
        ...

    def counters(self) -> dict[str, int]:
        """Return what there is to count, by name."""
        ...

    def dump(self) -> bytes:
        """Return the whole state, to be stored beside the checkpoint."""
        ...

    def load(self, state: bytes) -> None:
        """Go on from a dumped state. Raises msgspec.ValidationError for anything else."""
        ...

    def digest(self) -> str:
        """Return the SHA-256 of the whole state, in hexadecimal."""
        ...


MATCHING: Final = "matching"
VENUE: Final = "venue"
PAYLOADS: Final = "payloads"

HANDLERS: Final[Mapping[str, type[Handler]]] = MappingProxyType(
    {MATCHING: Matching, VENUE: Venue, PAYLOADS: PayloadDigest}
)


def handler_kind(columns: Collection[str]) -> str:
    """Return which of `HANDLERS` an input with these columns needs.

    A venue's feed has all columns of an order flow, and the other order of a trade besides.
    """
    if FEED_COLUMNS.issubset(columns):
        return VENUE
    if FLOW_COLUMNS.issubset(columns):
        return MATCHING
    return PAYLOADS
