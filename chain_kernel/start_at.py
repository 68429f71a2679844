"""The place to begin at: one value for receivers, consumers, intakes and the command line."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from typing import Annotated, Final, Literal, Self

from msgspec import Meta

from chain_kernel.clock import ns_of
from chain_kernel.config import Config
from chain_kernel.errors import SettingError
from chain_kernel.limits import ID_MAX

_ONE: Final = "one of 'beginning', 'end', after_id=ID, time=DATETIME"


class StartAt(Config, frozen=True, kw_only=False):
    """The place to begin at, for what has none yet: `StartAt("end")`, `StartAt(time=...)`.

    Exactly one answer is given. A place that is stored counts more: if a start were asked for again
    at each restart, it would skip or repeat. What comes before is never delivered, and is no gap.
    """

    at: Literal["beginning", "end"] | None = None
    """`beginning`: the first row of the chain, or the oldest record that the broker still holds.
    `end`: after the last one that is there at the start."""
    after_id: Annotated[int, Meta(ge=0, le=ID_MAX)] | None = None
    """After the last row whose id is not above this; there need not be a row with this id. Chains
    have it, topics do not."""
    time: Annotated[datetime, Meta(tz=True)] | None = None
    """With its time zone. At the first batch that was committed at or after this, by the
    sequencer's clock; in a topic at the first record of this millisecond or a later one."""

    def __post_init__(self) -> None:
        """Raise SettingError unless there is exactly one answer."""
        super().__post_init__()
        given = [name for name in self.__struct_fields__ if getattr(self, name) is not None]
        if len(given) != 1:
            raise SettingError("start_at", " and ".join(given) or None, _ONE)
        if self.time is not None and ns_of(self.time) < 0:  # to Kafka, -1 and -2 are no times
            raise SettingError("time", str(self.time), "1970 or later")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the place that a text names.

        Args:
            text: `beginning`, `end`, an id, or a time in ISO 8601 (UTC, if it names no zone).

        Raises:
            SettingError: it is none of these.
        """
        match text:
            case "beginning" | "end":
                return cls(text)
        with suppress(ValueError):
            return cls(after_id=int(text))
        with suppress(ValueError):
            time = datetime.fromisoformat(text)
            return cls(time=time if time.tzinfo else time.replace(tzinfo=UTC))
        expected = "beginning, end, an id, or a time such as 2026-01-31T09:30Z"
        raise SettingError("start_at", text, expected)

    @property
    def time_us(self) -> int | None:
        """The time as a chain has it: microseconds since 1970."""
        return None if self.time is None else ns_of(self.time) // 1_000

    @property
    def time_ms(self) -> int | None:
        """The time as records of Kafka have it: the millisecond that holds it."""
        return None if self.time_us is None else self.time_us // 1_000

    def require_topic(self) -> None:
        """Raise SettingError if it says what no topic knows: an id of a chain."""
        if self.after_id is not None:
            expected = "'beginning', 'end' or time=DATETIME: records of a topic have no id"
            raise SettingError("start_at", f"after_id={self.after_id}", expected)
