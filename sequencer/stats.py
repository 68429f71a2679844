"""Counts and times of a sequencer."""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from chain_kernel.monitoring import Buckets, Histogram, counter_field, gauge_field, metrics

if TYPE_CHECKING:
    from chain_kernel.monitoring import LagLimits

_WEIGHT = 0.1
"""Share of the newest value in the running mean: about the last ten count."""


class Latency(Struct, frozen=True, kw_only=True):
    """Seconds that one kind of work took; zeros before the first."""

    count: int = 0
    last_seconds: float = 0.0
    recent_seconds: float = 0.0
    """Running mean of about the last ten."""
    highest_seconds: float = 0.0
    histogram: Histogram = Histogram()
    """Durations: how many there were, and how long they took."""


class Timing:
    """Measures how long one kind of work takes."""

    def __init__(self) -> None:
        self._buckets = Buckets()
        self._count = 0
        self._last = self._recent = self._highest = 0.0

    def add(self, seconds: float) -> None:
        """Note that the work was done once more."""
        share = _WEIGHT if self._count else 1.0
        self._count += 1
        self._last = seconds
        self._recent += share * (seconds - self._recent)
        self._highest = max(self._highest, seconds)
        self._buckets.add(seconds)

    @property
    def latency(self) -> Latency:
        """The measurements so far."""
        return Latency(
            count=self._count,
            last_seconds=self._last,
            recent_seconds=self._recent,
            highest_seconds=self._highest,
            histogram=self._buckets.histogram,
        )


BATCH_SIZES: Final = (
    1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000,
)  # fmt: skip
"""Upper bounds of the buckets for the rows of a commit."""


@dataclass(kw_only=True)
class SequencerCounters:
    """Counts of a sequencer since the start of this process; each is a metric of its name."""

    orders: int = counter_field("Orders committed.")
    batches: int = counter_field("Commits.")
    repeats: int = counter_field(
        "Orders whose key was accepted before, or that were refused for their key."
    )
    busy: int = counter_field("Orders refused since no commit began for them in time (Busy).")
    publish_waits: int = counter_field("Commits that waited, since too much waited for the broker.")
    publish_wait_seconds: float = counter_field("How long they waited.")
    frames: int = counter_field("Frames that the broker acknowledged.")
    heartbeats: int = counter_field("Heartbeats published.")
    send_failures: int = counter_field("Sends that failed or exceeded their deadline.")
    take_overs: int = counter_field(
        "Epochs that this process raised; each one after the first is a lost connection."
    )
    unknown_outcomes: int = counter_field(
        "Commits whose answer was lost, and which were read back."
    )


_HISTOGRAM: Final = attrgetter("histogram")
_IS_NATIVE: Final = "native".__eq__


@dataclass(kw_only=True)
class SequencerStats(SequencerCounters):
    """The state at one instant; every counter counts from the start of this process."""

    chain_id: int
    name: str
    """The name in its config, as operators see it."""
    implementation: str = gauge_field(
        "1 where compiled functions run, 0 for Python.", name="native", read=_IS_NATIVE
    )
    """`native` where the compiled functions of `orderchain-speed` run, else `python`."""
    epoch: int = gauge_field("Epoch of this leader; 0 while it does not lead.")
    head_persisted: int = gauge_field("Last committed id.")
    head_published: int = gauge_field(
        "Last id that the broker has acknowledged, or that was skipped on record, with all before. "
        "Without a broker the last committed id."
    )
    unpublished_seconds: float = gauge_field(
        "How long the oldest committed order has waited for the broker; 0 when none waits."
    )
    broker_away_seconds: float = gauge_field(
        "How long the broker has acknowledged nothing that was sent to it; 0 when it answers. "
        "Without a broker how long notifications have failed."
    )
    broker_refusal: str
    """The reason; empty when it answers, or is silent."""
    lease_age_seconds: float = gauge_field(
        "Seconds since the lease was renewed; 0 before the chain is taken over."
    )
    loop_delay_seconds: float = gauge_field(
        "How late the event loop was for the last beat of the lease, or the last look at it."
    )
    batch_rows_last: int = gauge_field("Orders of the last commit.", name="batch_orders")
    batch_sizes: Histogram = gauge_field(
        "Orders per commit.", name="batch_size_orders", kind="histogram"
    )
    commit_latency: Latency = gauge_field(
        "From the first statement of a commit to the server's answer, retries included.",
        name="commit_seconds", kind="histogram", read=_HISTOGRAM,
    )  # fmt: skip
    publish_latency: Latency = gauge_field(
        "From a send to the broker's acknowledgement, without sends that failed.",
        name="publish_seconds", kind="histogram", read=_HISTOGRAM,
    )  # fmt: skip
    keys_remembered: int = gauge_field("Orders whose keys a repeat is compared with.")
    queue_rows: int = gauge_field("Orders that wait for a commit.", name="queue_orders")
    queue_bytes: int = gauge_field("Their keys and payloads.")
    publish_queue_bytes: int = gauge_field("Bytes of committed orders that wait for the broker.")

    def why_late(self, limits: LagLimits, lease_seconds: float, *, has_broker: bool) -> str | None:
        """Return in one line that it publishes, or renews its lease, too late; else None.

        Notifications that fail make nothing late: receivers poll.
        """
        lag = self.head_persisted - self.head_published
        if limits.are_exceeded(lag, self.unpublished_seconds):
            why = self.broker_refusal and f": {self.broker_refusal}"
            late = f"published {self.unpublished_seconds:.0f} s late"
            return f"{late}: {lag} ids wait for the broker{why}"
        if has_broker and limits.are_exceeded(0, self.broker_away_seconds):
            why = self.broker_refusal or "no acknowledgement"
            return f"nothing was published for {self.broker_away_seconds:.0f} s: {why}"
        if self.lease_age_seconds > lease_seconds:
            return f"the lease was not renewed for {self.lease_age_seconds:.0f} s"
        return None


METRICS: Final = metrics("orderchain_sequencer", SequencerStats)
"""Metrics of a sequencer, with the labels `chain` and `name`."""
