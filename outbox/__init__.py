"""Messages that must all arrive and be applied once, in any order.

Each name is imported at its first use: `chainctl schema` needs the names of the roles alone.
"""

# There is no import here: `import outbox` costs nothing. Type checkers treat this as true.
TYPE_CHECKING = False

if TYPE_CHECKING:
    from outbox.callback.callback_service import (
        CallbackService as CallbackService,
    )
    from outbox.callback.calls import (
        HttpSenderCalls as HttpSenderCalls,
        sender_app as sender_app,
    )
    from outbox.callback.checked_sender import (
        CheckedSender as CheckedSender,
    )
    from outbox.callback.config import (
        AskRules as AskRules,
        CallbackConfig as CallbackConfig,
        CheckedConfig as CheckedConfig,
    )
    from outbox.sender.check_back import (
        CheckBack as CheckBack,
        CheckingConfig as CheckingConfig,
        DecisionRefused as DecisionRefused,
        check_decision as check_decision,
        check_decisions as check_decisions,
        decide as decide,
        decide_messages as decide_messages,
        forget_decisions as forget_decisions,
    )
    from outbox.service.config import (
        Clients as Clients,
        ServiceConfig as ServiceConfig,
        read_clients as read_clients,
    )
    from outbox.service.interface import (
        MessageClient as MessageClient,
    )
    from outbox.service.server import (
        MessageService as MessageService,
    )
    from chain_kernel.start_at import StartAt as StartAt
    from outbox.consumer.attempts import Refused as Refused
    from outbox.consumer.config import (
        ConsumerConfig as ConsumerConfig,
        ConsumerStats as ConsumerStats,
    )
    from outbox.consumer.consumer import Consumer as Consumer
    from outbox.consumer.decisions import RetryLevels as RetryLevels
    from outbox.consumer.delivery import Delivery as Delivery
    from outbox.consumer.filters import (
        Filter as Filter,
        MemoryFilter as MemoryFilter,
        RedisFilter as RedisFilter,
        RedisFilterConfig as RedisFilterConfig,
    )
    from outbox.consumer.inbox import InboxLog as InboxLog
    from outbox.consumer.record_source import move_start as move_start
    from outbox.destination import Destination as Destination
    from outbox.errors import (
        BadRecord as BadRecord,
        DestinationMissing as DestinationMissing,
        MessageError as MessageError,
        OutboxFull as OutboxFull,
        PartEnded as PartEnded,
        TransitionRefused as TransitionRefused,
    )
    from outbox.message import Message as Message, draw_message_ids as draw_message_ids
    from outbox.records import Confirm as Confirm, Progress as Progress
    from outbox.sender.transaction import (
        BusinessTransaction as BusinessTransaction,
        add as add,
        add_many as add_many,
        wake as wake,
    )
    from outbox.sender.config import KeepConfig as KeepConfig, RelayConfig as RelayConfig
    from outbox.sender.relay import FireAfterCommit as FireAfterCommit, Relay as Relay
    from outbox.sender.maintenance import (
        MaintenanceReport as MaintenanceReport,
        change_destination as change_destination,
        create_destination_topics as create_destination_topics,
        keep_outbox as keep_outbox,
        save_destinations as save_destinations,
    )
    from outbox.statuses import Change as Change, Status as Status

_NAMES = {
    "outbox.callback.callback_service": "CallbackService",
    "outbox.callback.calls": "HttpSenderCalls sender_app",
    "outbox.callback.checked_sender": "CheckedSender",
    "outbox.callback.config": "AskRules CallbackConfig CheckedConfig",
    "outbox.sender.check_back": (
        "CheckBack CheckingConfig DecisionRefused check_decision check_decisions decide "
        "decide_messages forget_decisions"
    ),
    "outbox.service.config": "Clients ServiceConfig read_clients",
    "outbox.service.interface": "MessageClient",
    "outbox.service.server": "MessageService",
    "chain_kernel.start_at": "StartAt",
    "outbox.consumer.attempts": "Refused",
    "outbox.consumer.config": "ConsumerConfig ConsumerStats",
    "outbox.consumer.consumer": "Consumer",
    "outbox.consumer.decisions": "RetryLevels",
    "outbox.consumer.delivery": "Delivery",
    "outbox.consumer.filters": "Filter MemoryFilter RedisFilter RedisFilterConfig",
    "outbox.consumer.inbox": "InboxLog",
    "outbox.consumer.record_source": "move_start",
    "outbox.destination": "Destination",
    "outbox.errors": (
        "BadRecord DestinationMissing MessageError OutboxFull PartEnded TransitionRefused"
    ),
    "outbox.message": "Message draw_message_ids",
    "outbox.records": "Confirm Progress",
    "outbox.sender.transaction": "BusinessTransaction add add_many wake",
    "outbox.sender.config": "KeepConfig RelayConfig",
    "outbox.sender.relay": "FireAfterCommit Relay",
    "outbox.sender.maintenance": (
        "MaintenanceReport change_destination create_destination_topics keep_outbox "
        "save_destinations"
    ),
    "outbox.statuses": "Change Status",
}
"""The names that each module gives to the door."""

_MODULE_OF = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__: list[str]
"""The names of the door: made when it is asked for, by `__getattr__`."""


def __dir__() -> list[str]:
    return [*globals(), *_MODULE_OF]


if not TYPE_CHECKING:  # otherwise type checkers would accept a misspelt name

    def __getattr__(name: str) -> object:
        """Import what `name` stands for at its first use."""
        from chain_kernel.doors import imported

        found = globals()[name] = imported(__name__, name, _MODULE_OF, {"outbox": "outbox"})
        return found
