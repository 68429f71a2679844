"""Messages that must all arrive and be applied once, in any order."""

from outbox.adding import add, add_many
from outbox.business import BusinessTransaction
from outbox.confirm_record import Confirm, Progress
from outbox.consumer import Consumer
from outbox.consumer_config import ConsumerConfig
from outbox.consumer_kit import ConsumerStats, Refused
from outbox.delivery import Delivery
from outbox.destination import Destination
from outbox.errors import (
    BadRecord,
    DestinationMissing,
    MessageError,
    OutboxFull,
    PartEnded,
    TransitionRefused,
)
from outbox.filters import MemoryFilter, NoFilter, RedisFilter, RedisFilterConfig
from outbox.firing import FireAfterCommit
from outbox.inbox_log import InboxLog
from outbox.message import Message, draw_message_ids
from outbox.record_source import move_start
from outbox.relay import Relay
from outbox.relay_config import RelayConfig
from outbox.retention import Kept, keep_outbox
from outbox.retention_config import KeepConfig
from outbox.retries import RetryLevels
from outbox.setting_up import change_destination, create_destination_topics, save_destinations
from outbox.starts import StartAt, StartFrom
from outbox.statuses import Change, Status

__all__ = [
    "BadRecord",
    "BusinessTransaction",
    "Change",
    "Confirm",
    "Consumer",
    "ConsumerConfig",
    "ConsumerStats",
    "Delivery",
    "Destination",
    "DestinationMissing",
    "FireAfterCommit",
    "InboxLog",
    "KeepConfig",
    "Kept",
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
    "StartAt",
    "StartFrom",
    "Status",
    "TransitionRefused",
    "add",
    "add_many",
    "change_destination",
    "create_destination_topics",
    "draw_message_ids",
    "keep_outbox",
    "move_start",
    "save_destinations",
]
