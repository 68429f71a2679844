"""Messages that must all arrive and be applied once, in any order."""

from outbox.adding import add, add_many
from outbox.confirm_record import Confirm, Progress
from outbox.destination import Destination
from outbox.errors import BadRecord, DestinationMissing, MessageError, TransitionRefused
from outbox.firing import FireAfterCommit
from outbox.message import Message, draw_message_ids
from outbox.relay import BusinessTransaction, Relay
from outbox.relay_config import RelayConfig
from outbox.statuses import Change, Status
from outbox.store import save_destinations

__all__ = [
    "BadRecord",
    "BusinessTransaction",
    "Change",
    "Confirm",
    "Destination",
    "DestinationMissing",
    "FireAfterCommit",
    "Message",
    "MessageError",
    "Progress",
    "Relay",
    "RelayConfig",
    "Status",
    "TransitionRefused",
    "add",
    "add_many",
    "draw_message_ids",
    "save_destinations",
]
