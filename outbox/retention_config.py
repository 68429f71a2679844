"""How long the outbox keeps what is finished, and how much it may take on disk."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from orderchain.clients.database_config import DatabaseConfig
from orderchain.config import Config
from orderchain.errors import SettingError
from outbox.destination import Seconds


class RetentionConfig(Config, frozen=True, kw_only=True):
    """The rules of retention."""

    retention_seconds: Annotated[float, Meta(gt=0, le=366 * 86_400)] = 72 * 3_600.0
    """How long finished messages are kept, by the time at which they were stored."""
    partition_seconds: Annotated[int, Meta(ge=3_600, le=366 * 86_400, multiple_of=3_600)] = (
        6 * 3_600
    )
    """What one partition spans: the unit in which finished messages are dropped."""
    history_bytes_max: Annotated[int, Meta(ge=0)] = 0
    """First watermark: above so many bytes the oldest partitions are dropped earlier. 0: never.
    What the partitions of messages and of finished deliveries take on disk counts, with their
    indexes; not unfinished deliveries, nor what a strange clock has put into the default partition.
    Several partitions should fit below it: one that still takes messages is never dropped."""
    outbox_bytes_max: Annotated[int, Meta(ge=0)] | None = None
    """Second watermark: while the whole outbox takes more bytes, adding is refused with OutboxFull;
    what is stored is sent all the same. It stands in the database, where one of them counts for
    all: None leaves what was set last, 0 is no bound. A round of retention looks, so leave room
    above it for what is added between two rounds."""
    survivors_max: Annotated[int, Meta(ge=0, le=10**6)] = 10_000
    """Unfinished messages that are moved out of a partition to be dropped. One with more stays."""

    def __post_init__(self) -> None:
        """Raise SettingError, also where the second watermark is not above the first."""
        super().__post_init__()
        if self.outbox_bytes_max and self.outbox_bytes_max <= self.history_bytes_max:
            expected = f"more than history_bytes_max, {self.history_bytes_max}: drop, then refuse"
            raise SettingError("outbox_bytes_max", self.outbox_bytes_max, expected)


class KeepConfig(RetentionConfig, frozen=True, kw_only=True):
    """What one round of retention by hand must know."""

    database: str | DatabaseConfig
    """The database with the outbox's tables, for `outbox_operator` or `outbox_relay`: a
    DatabaseConfig, or a text as libpq takes it."""
    unsafe_durability: bool = False
    connect_seconds: Seconds = 10.0
    statement_seconds: Seconds = 60.0

    def __repr__(self) -> str:
        """Show the settings without the password."""
        return f"KeepConfig(database={DatabaseConfig.of(self.database).shown!r})"
