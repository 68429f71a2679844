"""What a sequencer counts and times."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from chain_kernel.monitoring import Buckets, Histogram, Metric, counter_field, counters

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
    """How many took how long."""


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
        """What was measured so far."""
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
    """What a sequencer has done since the start of this process; each is a metric of its name."""

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


@dataclass(kw_only=True)
class SequencerStats(SequencerCounters):
    """The state at one instant; every counter counts from the start of this process."""

    chain_id: int
    name: str
    """The name in its config, as operators see it."""
    implementation: str
    """`native` where the compiled functions of `orderchain-speed` run, else `python`."""
    epoch: int
    head_persisted: int
    """Last committed id."""
    head_published: int
    """End of the contiguous run that the broker has acknowledged, or that was skipped on record."""
    unpublished_seconds: float
    """How long the oldest committed order has waited for the broker; 0 when none waits."""
    broker_away_seconds: float
    """How long the broker has acknowledged nothing that was sent; 0 when it answers."""
    broker_refusal: str
    """Why; empty when it answers, or is silent."""
    lease_age_seconds: float
    """Since the lease was last renewed; 0 before the chain is taken over."""
    loop_delay_seconds: float
    """How late the event loop was for the last beat, or as a standby for the last look."""
    batch_rows_last: int
    """Orders of the last commit; `orders / batches` is the mean."""
    batch_sizes: Histogram
    """How many commits had how many orders."""
    commit_latency: Latency
    """From the first statement of a commit to the server's answer, retries included."""
    publish_latency: Latency
    """From a send to the broker's acknowledgement, without sends that failed."""
    keys_remembered: int
    """Rows whose keys a repeat is compared with."""
    queue_rows: int
    """Orders that wait for a commit."""
    queue_bytes: int
    """Their keys and payloads."""
    publish_queue_bytes: int
    """Bytes of committed rows that wait for the broker."""

    def why_late(self, limits: LagLimits, lease_seconds: float) -> str | None:
        """Return in one line that it publishes, or renews its lease, too late; else None."""
        lag = self.head_persisted - self.head_published
        if limits.are_exceeded(lag, self.unpublished_seconds):
            why = self.broker_refusal and f": {self.broker_refusal}"
            late = f"published {self.unpublished_seconds:.0f} s late"
            return f"{late}: {lag} ids wait for the broker{why}"
        if limits.are_exceeded(0, self.broker_away_seconds):
            why = self.broker_refusal or "no acknowledgement"
            return f"nothing was published for {self.broker_away_seconds:.0f} s: {why}"
        if self.lease_age_seconds > lease_seconds:
            return f"the lease was not renewed for {self.lease_age_seconds:.0f} s"
        return None


_S = Metric[SequencerStats]

METRICS: Final = (
    _S("orderchain_sequencer_epoch", "gauge", "Epoch of this leader; 0 while it does not lead.",
       lambda stats: stats.epoch),
    _S("orderchain_sequencer_head_persisted", "gauge", "Last committed id.",
       lambda stats: stats.head_persisted),
    _S("orderchain_sequencer_head_published", "gauge",
       "Last id that the broker has acknowledged, with all before it.",
       lambda stats: stats.head_published),
    _S("orderchain_sequencer_unpublished_seconds", "gauge",
       "How long the oldest committed order has waited for the broker.",
       lambda stats: stats.unpublished_seconds),
    _S("orderchain_sequencer_broker_away_seconds", "gauge",
       "How long the broker has acknowledged nothing that was sent to it.",
       lambda stats: stats.broker_away_seconds),
    _S("orderchain_sequencer_lease_age_seconds", "gauge", "Seconds since the lease was renewed.",
       lambda stats: stats.lease_age_seconds),
    _S("orderchain_sequencer_loop_delay_seconds", "gauge",
       "How late the event loop was for the last beat of the lease, or the last look at it.",
       lambda stats: stats.loop_delay_seconds),
    _S("orderchain_sequencer_queue_orders", "gauge", "Orders that wait for a commit.",
       lambda stats: stats.queue_rows),
    _S("orderchain_sequencer_queue_bytes", "gauge", "Their keys and payloads.",
       lambda stats: stats.queue_bytes),
    _S("orderchain_sequencer_publish_queue_bytes", "gauge",
       "Bytes of committed orders that wait for the broker.",
       lambda stats: stats.publish_queue_bytes),
    _S("orderchain_sequencer_batch_orders", "gauge", "Orders of the last commit.",
       lambda stats: stats.batch_rows_last),
    _S("orderchain_sequencer_batch_size_orders", "histogram", "Orders per commit.",
       lambda stats: stats.batch_sizes),
    _S("orderchain_sequencer_keys_remembered", "gauge", "Orders whose keys are remembered.",
       lambda stats: stats.keys_remembered),
    _S("orderchain_sequencer_commit_seconds", "histogram",
       "From the first statement of a commit to the answer.",
       lambda stats: stats.commit_latency.histogram),
    _S("orderchain_sequencer_publish_seconds", "histogram",
       "From a send to the broker's acknowledgement.",
       lambda stats: stats.publish_latency.histogram),
    _S("orderchain_sequencer_native", "gauge", "1 where compiled functions run, 0 for Python.",
       lambda stats: int(stats.implementation == "native")),
    *counters("orderchain_sequencer", SequencerCounters),
)  # fmt: skip
"""What a sequencer exports, with the labels `chain` and `name`."""
