"""The database roles of the engine; `schema.sql` defines what each may do."""

from __future__ import annotations

from typing import Final

OWNER: Final = "orderchain_owner"
"""Owns every object of the schema. NOLOGIN: nobody works as the owner."""

SEQUENCER_WRITER: Final = "sequencer_writer"
GAP_READER: Final = "gap_reader"
RECEIVER_WRITER: Final = "receiver_writer"
AUDITOR: Final = "auditor"

LOGIN_ROLES: Final = (SEQUENCER_WRITER, GAP_READER, RECEIVER_WRITER, AUDITOR)
"""Services log in as these. `schema.sql` makes those that do not exist, without a password."""

OUTBOX_WRITER: Final = "outbox_writer"
OUTBOX_RELAY: Final = "outbox_relay"
OUTBOX_OPERATOR: Final = "outbox_operator"

OUTBOX_ROLES: Final = (OUTBOX_WRITER, OUTBOX_RELAY, OUTBOX_OPERATOR)
"""The same for the outbox: `outbox/sql/schema.sql` makes these."""

OUTBOX_CONSUMER: Final = "outbox_consumer"

INBOX_ROLES: Final = (OUTBOX_CONSUMER, OUTBOX_OPERATOR)
"""The same for the inbox: `outbox/sql/inbox.sql` makes these."""

OUTBOX_CALLBACK: Final = "outbox_callback"

CALLBACK_ROLES: Final = (OUTBOX_CALLBACK,)
"""The same for the callback service: `outbox/sql/callback.sql` makes it."""

OUTBOX_DECIDER: Final = "outbox_decider"

DECISION_ROLES: Final = (OUTBOX_DECIDER,)
"""The same for the decisions on prepared messages: `outbox/sql/decision.sql` makes it."""
