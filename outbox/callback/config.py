"""The settings of mode 5, for its two sides, and the decision after each question. Pure."""

from __future__ import annotations

import enum
from typing import Annotated

from msgspec import Meta, Struct

from chain_kernel.clients.database_config import DatabaseConfig
from chain_kernel.clients.kafka_config import KafkaConfig
from chain_kernel.clock import step_seconds
from chain_kernel.config import Config
from outbox.destination import CONFIRMS_MAX, Name, Seconds, Topic


class Reply(enum.Enum):
    """A sender's reply about a delivery that it was asked to send again."""

    SENT = "sent"
    """It was sent again, also if the broker refused it: that counted as a try."""
    ENDED = "ended"
    """It is finished, abnormal, or not known: there is nothing to send."""


class AskRules(Config, frozen=True, kw_only=True):
    """The times at which a sender is asked."""

    again_seconds: Seconds = 300.0
    """Pause after a message was resent, before the next question. It doubles with each."""
    again_seconds_max: Seconds = 3_600.0
    """Upper bound of that time."""
    unanswered_seconds: Seconds = 10.0
    """Pause of a sender after a question, or a return of confirms, that was not answered."""


class NextQuestion(Struct, frozen=True):
    """The next state of a delivery after a question."""

    is_ended: bool
    ask_count: int
    """Questions that were answered so far."""
    again_seconds: float = 0.0


def after_ask(rules: AskRules, ask_count: int, reply: Reply | None) -> NextQuestion:
    """Return what follows from `reply`, after `ask_count` earlier answers; None: no answer.

    There is no bound here: the sender counts its tries, and ends the delivery when they are used
    up.
    """
    if reply is None:
        return NextQuestion(False, ask_count, rules.unanswered_seconds)
    if reply is Reply.ENDED:
        return NextQuestion(True, ask_count + 1)
    again = step_seconds(rules.again_seconds, rules.again_seconds_max, ask_count)
    return NextQuestion(False, ask_count + 1, again)


class CallbackConfig(Config, frozen=True, kw_only=True):
    """The settings of a callback service. Several may share the store."""

    database: str | DatabaseConfig
    """The callback service's own store, for the role `outbox_callback`: a DatabaseConfig, or a text
    as libpq takes it."""
    kafka: str | KafkaConfig
    """A KafkaConfig, or the plaintext bootstrap servers, `host:port[,host:port]`."""
    check_topic: Topic
    """The topic on which senders ask for checks."""
    confirm_topics: Annotated[tuple[Topic, ...], Meta(min_length=1, max_length=1_000)]
    """The topics on which consumers confirm."""
    name: Name = "orderchain-outbox-callback"
    """The Kafka group in which the services of this store share those topics."""
    rules: AskRules = AskRules()
    return_seconds: Annotated[float, Meta(ge=0, le=3600)] = 1.0
    """Longest wait of a confirm to be returned with others: fewer, larger batches."""
    round_seconds: Annotated[float, Meta(gt=0, le=3600)] = 1.0
    """Pause between two looks for what is due."""
    ask_rows_max: Annotated[int, Meta(ge=1, le=10_000)] = 1_000
    """Deliveries of one question."""
    return_rows_max: Annotated[int, Meta(ge=1, le=CONFIRMS_MAX)] = 5_000
    """Confirms of one return."""
    call_seconds: Annotated[float, Meta(gt=0, le=3600)] = 10.0
    """Deadline of one call to a sender."""
    late_seconds: Annotated[float, Meta(ge=0, le=86_400)] = 600.0
    """Time after its retry fell due in which nothing is asked about a parked message: longer than
    its handler may take."""
    retention_seconds: Annotated[float, Meta(gt=0, le=366 * 86_400)] = 72 * 3_600.0
    """Time for which what has ended is remembered, so that a repeated check is recognized."""
    unsafe_durability: bool = False
    """Work on a server that may lose what it has committed: without `fsync`, `full_page_writes` or
    `synchronous_commit`."""
    connect_seconds: Seconds = 10.0
    statement_seconds: Seconds = 30.0

    def __repr__(self) -> str:
        """Show the settings without the password."""
        shown = DatabaseConfig.of(self.database).shown
        return f"CallbackConfig(database={shown!r}, kafka={self.kafka!r})"


class CheckedConfig(Config, frozen=True, kw_only=True):
    """The settings of a sender of mode 5, in addition to those of a relay."""

    sender: Name
    """The name under which the callback service knows how to call it."""
    check_topic: Topic
    check_seconds: Seconds = 300.0
    """Time after which the callback service asks for an unconfirmed message. If the sweep is on,
    too, keep the destination's `resend_seconds` above it."""
