"""Errors of the outbox, sorted by what the caller does next (see `orderchain.errors`).

OrderchainError
├── RefusedError              mend what you gave; nothing was done
│   ├── MessageError              a message: its payload, key, headers or id
│   ├── DestinationMissing        no destination of that name was set up
│   └── TransitionRefused         the delivery is not where this change could be made
└── BadRecord                 one record is unusable: drop it, count it
"""

from __future__ import annotations

from orderchain.errors import OrderchainError, RefusedError


class MessageError(RefusedError):
    """A message was refused before anything of it was stored."""


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


class BadRecord(OrderchainError):
    """A record cannot be used. `reason` is a short, stable word for counting."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
