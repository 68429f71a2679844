"""The demo: an order flow, a lossy link, a matching service, Spark; and what it is asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from msgspec import Struct

from chainctl.monitor_server import Address
from orderchain_demo.lossy_link import LinkFaults

ORDERS: Final = 200_000
ORDERS_MAX: Final = 10_000_000
"""Beyond it files and tables would fill an ordinary disk: 10 million orders take 5 GB."""

LOSS: Final = 0.05
DUPLICATE: Final = 0.02
REORDER: Final = 0.02

_DELAYED_OF_REORDERED: Final = 0.5
"""For two frames that are overtaken by a few others, one is overtaken by many."""


class DemoOptions(Struct, frozen=True, kw_only=True):
    """What a demo is asked for."""

    input: Path | None
    """File of orders; None: they are generated."""
    orders: int
    """Orders to generate."""
    loss: float
    duplicate: float
    reorder: float
    seed: int
    """Seed of the generated orders and of the link's faults."""
    with_spark: bool = True
    """Whether Spark verifies; otherwise the local verifier does."""
    http: Address | None = None
    """Where the sequencing service serves its metrics, the matching service at the next port."""

    @property
    def verifier(self) -> str:
        """What verifies, for people."""
        return "Spark" if self.with_spark else "--local"

    def faults(self) -> LinkFaults:
        """Return what the link does."""
        return LinkFaults(
            loss=self.loss,
            duplicate=self.duplicate,
            reorder=self.reorder,
            delay=min(self.reorder * _DELAYED_OF_REORDERED, 1 - self.reorder),
            seed=self.seed,
        )
