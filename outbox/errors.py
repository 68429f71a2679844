"""Errors of the outbox, sorted by what the caller does next (see `chain_kernel.errors`).

OrderchainError
├── RefusedError              fix what you gave; nothing was done
│   ├── MessageError              a message: its payload, key, headers or id
│   ├── DestinationMissing        no destination of that name was set up
│   └── TransitionRefused         the delivery's status does not allow this change
├── StoppedError              this object no longer works; open a new one
│   └── PartEnded                 a part that must live has ended
├── RetryError                the same call may succeed later
│   └── OutboxFull                the outbox takes more on disk than it may; nothing was stored
└── BadRecord                 one record is unusable: drop it, count it
"""

from __future__ import annotations

from typing import Final

from chain_kernel.errors import (
    DurabilityError,
    OrderchainError,
    RefusedError,
    RetryError,
    StoppedError,
)

LASTING: Final = (StoppedError, DurabilityError)
"""Errors that do not pass by themselves: an endless loop ends with them."""


class MessageError(RefusedError):
    """A message was refused before any of it was stored."""


class DestinationMissing(RefusedError):
    """No destination of that name was set up; nothing was stored."""

    def __init__(self, destination: str) -> None:
        super().__init__("destination", destination, "one that was set up")
        self.destination = destination


class TransitionRefused(RefusedError):
    """The delivery is not in a status from which this change may be made; nothing was changed."""

    def __init__(self, status: str, change: str, expected: str) -> None:
        super().__init__("status", status, f"one that can be {change}: {expected}")
        self.status = status
        self.change = change


class PartEnded(StoppedError):
    """A part of the service has ended, and the service with it: nothing more is accepted.

    Its cause is what the part raised; it has none if the part was cancelled or returned.
    """

    def __init__(self, service: str, part: str) -> None:
        super().__init__(f"{service}: {part} has ended, so nothing more is accepted")
        self.service = service
        self.part = part


class OutboxFull(RetryError):
    """The outbox takes more on disk than it may: nothing was stored, and the transaction is broken.

    Adding works again once history was dropped, or the bound raised (`chainctl outbox keep`).
    """


class BadRecord(OrderchainError):
    """A record cannot be used. `reason` is a short, stable word for counting."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
