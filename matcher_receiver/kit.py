"""What the parts of one receiver's shell share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from orderchain.errors import ConnectError, RetryError

if TYPE_CHECKING:
    from matcher_receiver.config import ReceiverConfig
    from matcher_receiver.core import ReceiveCore
    from matcher_receiver.gaps import GapLedger
    from matcher_receiver.stats import Counters
    from matcher_receiver.waits import Waits
    from orderchain.clock import Clock
    from orderchain.ports import FrameSource, GapSource

AWAY: Final = (RetryError, ConnectError)
"""A server that is away. One that restarts refuses connections: after the start that is no reason
to give up."""


@dataclass(frozen=True, kw_only=True)
class Kit:
    """The core, its ports, and the tools by which they are awaited."""

    config: ReceiverConfig
    core: ReceiveCore
    frames: FrameSource
    gap_source: GapSource
    clock: Clock
    waits: Waits
    counters: Counters
    ledger: GapLedger
