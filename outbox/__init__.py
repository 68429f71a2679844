"""Messages that must all arrive and be applied once, in any order."""

from outbox.consumer.attempts import Refused
from outbox.consumer.config import ConsumerConfig, ConsumerStats
from outbox.consumer.consumer import Consumer
from outbox.consumer.decisions import RetryLevels
from outbox.consumer.delivery import Delivery
from outbox.consumer.filters import MemoryFilter, NoFilter, RedisFilter, RedisFilterConfig
from outbox.consumer.in_hand import ConsumeStart, StartFrom
from outbox.consumer.inbox import InboxLog
from outbox.consumer.record_source import move_start
from outbox.destination import Destination
from outbox.errors import (
    BadRecord,
    DestinationMissing,
    MessageError,
    OutboxFull,
    PartEnded,
    TransitionRefused,
)
from outbox.message import Message, draw_message_ids
from outbox.records import Confirm, Progress
from outbox.sender.business import BusinessTransaction, add, add_many
from outbox.sender.config import KeepConfig, RelayConfig
from outbox.sender.relay import FireAfterCommit, Relay
from outbox.sender.upkeep import (
    UpkeepReport,
    change_destination,
    create_destination_topics,
    keep_outbox,
    save_destinations,
)
from outbox.statuses import Change, Status

__all__ = [
    "BadRecord",
    "BusinessTransaction",
    "Change",
    "Confirm",
    "ConsumeStart",
    "Consumer",
    "ConsumerConfig",
    "ConsumerStats",
    "Delivery",
    "Destination",
    "DestinationMissing",
    "FireAfterCommit",
    "InboxLog",
    "KeepConfig",
    "MemoryFilter",
    "Message",
    "MessageError",
    "NoFilter",
    "OutboxFull",
    "PartEnded",
    "Progress",
    "RedisFilter",
    "RedisFilterConfig",
    "Refused",
    "Relay",
    "RelayConfig",
    "RetryLevels",
    "StartFrom",
    "Status",
    "TransitionRefused",
    "UpkeepReport",
    "add",
    "add_many",
    "change_destination",
    "create_destination_topics",
    "draw_message_ids",
    "keep_outbox",
    "move_start",
    "save_destinations",
]
