"""Messages that must all arrive and be applied once, in any order."""

from outbox.confirm_record import Confirm, Progress
from outbox.destination import Destination
from outbox.errors import BadRecord, DestinationMissing, MessageError, TransitionRefused
from outbox.message import Message
from outbox.statuses import Change, Status

__all__ = [
    "BadRecord",
    "Change",
    "Confirm",
    "Destination",
    "DestinationMissing",
    "Message",
    "MessageError",
    "Progress",
    "Status",
    "TransitionRefused",
]
