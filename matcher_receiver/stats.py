"""Counts of a receiver, as a value, and the last gaps that it met."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from chain_kernel.model import Gap
from chain_kernel.monitoring import (
    Buckets,
    Histogram,
    Metric,
    counter_field,
    gauge_field,
    metrics,
)
from matcher_receiver.decisions import State

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from chain_kernel.clock import Clock
    from chain_kernel.errors import RowsArchived
    from chain_kernel.model import Cause, ShadowReport


@dataclass(kw_only=True)
class ReceiverCounters:
    """Counts of a receiver since its start."""

    records: int = counter_field("Kafka records looked at.")
    heartbeats: int = counter_field("Heartbeats received.")
    frames_live: int = counter_field("Frames whose orders were delivered.", name="frames")
    """All of them or a part."""
    duplicates_dropped: int = counter_field(
        "Frames dropped, since their orders had been delivered.", name="duplicates"
    )
    dropped: dict[str, int] = field(default_factory=dict)
    """Frames dropped for another reason: `chain`, `nonce`, `mac` (not signed by the leader that it
    names), `phantom`, `suspect` (not checked, right after a phantom), `seal`, `epoch`, `link`,
    `unreadable`, or a FrameError's reason."""
    rows_live: int = 0
    """Rows delivered from frames."""
    rows_filled: int = 0
    """Rows delivered from the database to fill gaps."""
    rows_caught_up: int = 0
    """Rows delivered from the database at the start."""
    fill_seconds: float = counter_field("Time spent waiting for orders from the database.")
    source: str = ""
    """The source of the last run: `kafka`, `primary` or `standby`; empty before the first."""
    reads: int = counter_field("Readings of the database's head.")
    database_retries: int = counter_field("Readings and fills that failed and were retried.")
    broker_failures: int = counter_field("Times that the broker could not be reached.")

    @property
    def fill_rows_per_second(self) -> float:
        """Rows read from the database per second of `fill_seconds`; 0 before the first."""
        rows = self.rows_filled + self.rows_caught_up
        return rows / self.fill_seconds if self.fill_seconds else 0.0

    def drop(self, reason: str) -> None:
        """Count a frame that was dropped for `reason`."""
        if reason == "old":
            self.duplicates_dropped += 1
        else:
            self.dropped[reason] = self.dropped.get(reason, 0) + 1


@dataclass(kw_only=True)
class ReceiverStats(ReceiverCounters):
    """The state at one instant; every counter counts from the start of this receiver."""

    chain_id: int
    name: str
    """The receiver's name; empty if it has none."""
    state: State
    head_delivered: int = gauge_field("Last id delivered to the caller.")
    head_seen: int = gauge_field("The highest id known to be committed.")
    """By a reading of the database, or a delivered frame."""
    lag_ids: int = gauge_field("Known ids that are not delivered yet.")
    """`head_seen` less `head_delivered`; ids skip, so rows may be fewer."""
    lag_rows: int = gauge_field(
        "Known orders that are not delivered yet, up to those of 10,000 batches.",
        name="lag_orders",
    )
    """Known rows that are not delivered. The database counts them when it is read, up to those of
    10,000 batches; before that, and in a short gap, it is `lag_ids`, which is never lower."""
    lag_seconds: float = gauge_field("How long undelivered orders have been known.")
    """0 when all are delivered. It does not grow while a
    caller works for long on one run: what Kafka holds meanwhile is not known yet."""
    fill_until: int
    """Last id of the open fill; not above `head_delivered` when none is open."""
    open_gap: tuple[int, int] | None
    """The rows being read from the database now: from after one id up to another."""
    gaps: int = counter_field("Gaps filled.")
    gap_durations: Histogram = gauge_field(
        "From when a gap was seen to its last order.", name="gap_seconds", kind="histogram"
    )
    shadow: ShadowReport | None = None
    """The result of a shadow; None for another receiver."""


_R = Metric[ReceiverStats]

_NO_FORGERY: Final = {"mac": 0, "nonce": 0, "phantom": 0}
"""Exported from the start: an alert on an increase would miss a series that begins with 1."""

METRICS: Final = (
    *metrics("orderchain_receiver", ReceiverStats),
    _R("orderchain_receiver_live", "gauge", "1 while it delivers live frames, else 0.",
       lambda stats: stats.state is State.LIVE),
    _R("orderchain_receiver_halted", "gauge",
       "1 when the database contradicts what was delivered: a person has to look, else 0.",
       lambda stats: stats.state is State.HALTED),
    _R("orderchain_receiver_gap_open", "gauge", "1 while missing orders are read, else 0.",
       lambda stats: stats.open_gap is not None),
    _R("orderchain_receiver_orders_total", "counter",
       "Orders delivered: live, filled into a gap, or caught_up with at the start.",
       lambda stats: {"live": stats.rows_live, "filled": stats.rows_filled,
                      "caught_up": stats.rows_caught_up}, "source"),
    _R("orderchain_receiver_frames_dropped_total", "counter",
       "Frames dropped for another reason; mac, nonce and phantom are forged ones.",
       lambda stats: {**_NO_FORGERY, **stats.dropped}, "reason"),
    _R("orderchain_receiver_shadow_states_total", "counter",
       "States of a shadow: compared with those of the receiver that it follows.",
       lambda stats: {"compared": stats.shadow.compared} if stats.shadow else {}, "result"),
    _R("orderchain_receiver_shadow_groups", "gauge",
       "Groups of a shadow whose states differ from those of the receiver that it follows.",
       lambda stats: {"differ": stats.shadow.groups} if stats.shadow else {}, "result"),
)  # fmt: skip
"""Metrics of a receiver, with the labels `chain` and `name`."""


class GapLedger:
    """The last gaps, oldest first; bounded: the oldest are dropped.

    A gap that could not be filled is in it too, once, however often that was tried. So is a gap
    that is being filled, or was being filled when the receiver ended.
    """

    def __init__(
        self,
        kept: int,
        record: Callable[[Gap], None] | None = None,
        trace: Callable[[Gap], None] | None = None,
    ) -> None:
        """`record` stores each entry; `trace` makes a span of it."""
        self._kept = kept
        self._gaps: dict[int, Gap] = {}  # by place; the last entry of a place counts
        self._record = record
        self._trace = trace
        self.count = 0
        """Gaps ever filled, including those that were dropped."""
        self.durations = Buckets()
        """Durations of fills."""

    def add(self, gap: Gap) -> None:
        """Append `gap`; it replaces an earlier entry for the same place."""
        if gap.outcome == "filled":
            self.count += 1
            self.durations.add(gap.duration_ns / 1e9)
        self._gaps.pop(gap.after_id, None)
        self._gaps[gap.after_id] = gap
        if len(self._gaps) > self._kept:
            del self._gaps[next(iter(self._gaps))]
        if self._record is not None:
            self._record(gap)
        if self._trace is not None:
            self._trace(gap)

    def __len__(self) -> int:
        return len(self._gaps)

    def __iter__(self) -> Iterator[Gap]:
        return iter(tuple(self._gaps.values()))


def archived_gap(error: RowsArchived, after_id: int, cause: Cause, clock: Clock) -> Gap:
    """Return the entry for a place, not a fill, that was found before the archive's boundary."""
    return Gap(
        chain_id=error.chain_id,
        after_id=after_id,
        until_id=error.until_id,
        cause=cause,
        source="primary",
        rows=0,
        found_at_ns=clock.wall_ns(),
        duration_ns=0,
        outcome="archived",
    )
