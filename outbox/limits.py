"""Hard bounds of the outbox. Each has a reason; a destination's settings may only be stricter."""

from __future__ import annotations

from typing import Final

from orderchain import limits

PAYLOAD_BYTES_MAX: Final = 512 * 1024
"""With key and headers a record stays below 1 MB, the largest that brokers take by default."""

KEY_BYTES_MAX: Final = limits.KEY_BYTES_MAX
"""A key is an identifier, not a document."""

HEADERS_MAX: Final = 64
"""More than tracing and routing ever need."""

HEADER_NAME_CHARS_MAX: Final = 100
"""A name, not a document."""

HEADERS_BYTES_MAX: Final = 16 * 1024
"""All names and values together: headers travel with every copy of a message."""

NAME_CHARS_MAX: Final = 100
"""Bound on the names of destinations, consumers and senders: people type them, and read them in
tables."""

TOPIC_CHARS_MAX: Final = 249
"""Kafka's own limit."""

CONSUMERS_MAX: Final = 64
"""Consumers of one destination: each costs one row per message."""

MESSAGES_MAX: Final = 100_000
"""Messages of one call of `add_many`: what one statement may hold in memory."""

TRIES_MAX: Final = 1_000
"""Tries of one round; a person should look long before so many."""

OPEN_SECONDS_MAX: Final = 3_600.0
"""How long a transaction that stores messages may stay open, counted from the time at which their
ids were drawn, and with clocks that differ. The inboxes of consumers keep what is younger: they
keep days anyway, so an hour costs nothing."""

CONFIRM_RECORD_BYTES_MAX: Final = 1024 * 1024
"""The largest record that the intake of confirms decodes. A larger one is refused unread, since
small values decode into objects many times their size."""

CONFIRMS_MAX: Final = 16_000
"""Confirms of one record: at most 61 bytes each, so this many stay below the size above."""

PROGRESS_MAX: Final = 10_000
"""Partitions whose progress one confirm record reports."""
