"""A destination: the topic that messages go to, who consumes them, and when one is resent.

Here are the hard bounds of everything that goes there, too.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta
from msgspec.structs import force_setattr

from chain_kernel import limits
from chain_kernel.config import Config
from chain_kernel.errors import SettingError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# The hard bounds of the outbox. Each has a reason; a destination's settings may only be stricter.

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
"""Longest life of a transaction that stores messages, counted from the time at which their ids were
drawn, and with clocks that differ. The inboxes of consumers keep what is younger: they
keep days anyway, so an hour costs nothing."""

CONFIRM_RECORD_BYTES_MAX: Final = 1024 * 1024
"""The largest record that the intake of confirms decodes. A larger one is refused unread, since
small values decode into objects many times their size."""

CONFIRMS_MAX: Final = 16_000
"""Confirms of one record: at most 61 bytes each, so this many stay below the size above."""

PROGRESS_MAX: Final = 10_000
"""Partitions whose progress one confirm record reports."""

Name = Annotated[str, Meta(min_length=1, max_length=NAME_CHARS_MAX)]
Topic = Annotated[str, Meta(min_length=1, max_length=TOPIC_CHARS_MAX)]
Seconds = Annotated[float, Meta(gt=0, le=30 * 86_400)]

_TOPIC: Final = re.compile(r"[A-Za-z0-9._-]+")


def is_plain(name: str) -> bool:
    """Return whether `name` is printable ASCII, as all our names are."""
    return name.isascii() and name.isprintable()


def default_confirm_topic(topic: str) -> str:
    """Return where the consumers of a topic confirm if nothing else is set."""
    return f"{topic}.confirms"


NO_CONSUMER: Final = ""
"""The consumer of a delivery whose destination asks for no confirm: there is one per message."""


class Destination(Config, frozen=True, kw_only=True):
    """The topic that messages go to, and the rules of their delivery.

    It is stored in the database, where every service finds it by its name.

    Raises:
        SettingError: a field is out of bounds, or two of them contradict each other.
    """

    name: Name
    topic: Topic
    """It belongs to one outbox database, or to fire after commit: a consumer's inbox forgets by the
    word of its sender, and what another one still has to send would be taken for too old."""
    confirm: Literal["required", "none"] = "required"
    """`required`: its consumers confirm what they applied. With `none` the broker's acknowledgement
    is the end: a message that a consumer loses after that is not resent."""
    consumers: Annotated[tuple[Name, ...], Meta(max_length=CONSUMERS_MAX)] = ()
    """The consumers that must confirm: one delivery each. At least one with `required`, none with
    `none`."""
    confirm_topic: Annotated[str, Meta(max_length=TOPIC_CHARS_MAX)] = ""
    """The topic of their confirms; by default the topic's name and `.confirms`."""
    tries_max: Annotated[int, Meta(ge=1, le=TRIES_MAX)] = 3
    """Sends of a delivery before it becomes abnormal."""
    resend_seconds: Seconds = 30.0
    """Longest wait of the first send for its end: the acknowledgement, and the confirm if required.
    The time doubles with each try."""
    resend_seconds_max: Seconds = 600.0
    """Upper bound of that time."""
    queue_seconds_max: Seconds = 3_600.0
    """Longest wait of an acknowledged message until its consumer has read up to it. After that it
    is resent by time alone."""
    resend_filter: bool = True
    """True: a message that is merely queued at its consumer is spared a resend. Turn it off for
    consumers that do not report their progress: then time alone decides."""
    payload_bytes_max: Annotated[int, Meta(ge=1, le=PAYLOAD_BYTES_MAX)] = 256 * 1024

    def __post_init__(self) -> None:
        """Fill in the confirm topic. Raises SettingError if two settings contradict each other."""
        super().__post_init__()
        if not is_plain(self.name):
            raise SettingError("name", self.name, "printable ASCII characters")
        if self.confirm == "required" and not self.consumers:
            raise SettingError("consumers", self.consumers, "at least one, since confirm=required")
        if self.confirm == "none" and (self.consumers or self.confirm_topic):
            given = self.consumers or self.confirm_topic
            raise SettingError("consumers", given, "none, since confirm=none")
        if len(set(self.consumers)) != len(self.consumers):
            raise SettingError("consumers", self.consumers, "each name once")
        for consumer in self.consumers:
            if not is_plain(consumer):
                raise SettingError("consumers", consumer, "printable ASCII characters")
        if self.confirm == "required" and not self.confirm_topic:
            # Frozen for all others; nothing has seen this instance yet.
            force_setattr(self, "confirm_topic", default_confirm_topic(self.topic))
        for topic in filter(None, (self.topic, self.confirm_topic)):
            if not _TOPIC.fullmatch(topic):
                raise SettingError("topic", topic, "letters, digits, dots, underscores, hyphens")
        if self.resend_seconds_max < self.resend_seconds:
            expected = f"at least resend_seconds, {self.resend_seconds}"
            raise SettingError("resend_seconds_max", self.resend_seconds_max, expected)

    @property
    def deliveries(self) -> tuple[str, ...]:
        """The consumers that each message has a delivery for."""
        return self.consumers or (NO_CONSUMER,)


LOSS: Final = "what is lost there is sent again only where consumers confirm"
"""The consequence of records that the brokers have acknowledged and lost."""


def topics_of(destinations: Iterable[Destination]) -> set[str]:
    """Return the topics of messages and of confirms."""
    return {topic for each in destinations for topic in (each.topic, each.confirm_topic) if topic}


def changed_destination(
    stored: Mapping[str, Any] | None, name: str, changes: Mapping[str, Any]
) -> Destination:
    """Return the destination `name` with the fields of `changes`, and all other fields as they are.

    `stored` holds the fields of an existing one. A new one needs its topic, and has the defaults
    otherwise. `consumers` alone means that they confirm, or, if empty, that none does; `confirm`
    none removes the consumers and their topic. Raises SettingError.
    """
    if stored is None and "topic" not in changes:
        raise SettingError("topic", "", f"the topic of {name}, which is new")
    fields = {**(stored or {}), **changes, "name": name}
    if "confirm" not in changes and (stored is None or "consumers" in changes):
        fields["confirm"] = "required" if fields.get("consumers") else "none"
    if fields["confirm"] == "none":
        fields |= {"consumers": (), "confirm_topic": "", **changes}
    try:
        return msgspec.convert(fields, Destination)
    except msgspec.ValidationError as error:
        reason, _, place = str(error).replace("`", "").partition(" - at $.")
        field = place.partition("[")[0] or "destination"
        raise SettingError(field, fields.get(field), reason.removeprefix("Expected ")) from None
