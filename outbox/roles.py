"""The login roles of the outbox: its schema makes those that do not exist, without a password.

And the tables whose rows it numbers.
"""

from __future__ import annotations

from typing import Final

OUTBOX_WRITER: Final = "outbox_writer"
OUTBOX_RELAY: Final = "outbox_relay"
OUTBOX_OPERATOR: Final = "outbox_operator"
OUTBOX_CONSUMER: Final = "outbox_consumer"
OUTBOX_CALLBACK: Final = "outbox_callback"
OUTBOX_DECIDER: Final = "outbox_decider"

ROLES_OF: Final = {
    "outbox": (OUTBOX_WRITER, OUTBOX_RELAY, OUTBOX_OPERATOR),
    "inbox": (OUTBOX_CONSUMER, OUTBOX_OPERATOR),
    "callback": (OUTBOX_CALLBACK,),
    "decision": (OUTBOX_DECIDER,),
}
"""The roles of each part of the schema."""

NUMBERED: Final = {
    "delivery_act": "act_id",
    "inbox_act": "act_id",
    "inbox_consumer": "consumer_id",
}
"""The tables whose rows get a number from a sequence, and its column."""
