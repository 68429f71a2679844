"""What a sequencer counts and times."""

from __future__ import annotations

from msgspec import Struct

_WEIGHT = 0.1
"""Share of the newest value in the running mean: about the last ten count."""


class Latency(Struct, frozen=True, kw_only=True):
    """Seconds that one kind of work took; zeros before the first."""

    count: int = 0
    last_seconds: float = 0.0
    recent_seconds: float = 0.0
    """Running mean of about the last ten."""
    highest_seconds: float = 0.0

    def with_value(self, seconds: float) -> Latency:
        """Return the values after `seconds` were measured too."""
        return Latency(
            count=self.count + 1,
            last_seconds=seconds,
            recent_seconds=(
                seconds
                if self.count == 0
                else self.recent_seconds + _WEIGHT * (seconds - self.recent_seconds)
            ),
            highest_seconds=max(self.highest_seconds, seconds),
        )


class SequencerStats(Struct, frozen=True, kw_only=True):
    """The state at one instant; every counter counts from the start of this process."""

    chain_id: int
    name: str
    """The name in its config, as operators see it."""
    epoch: int
    head_persisted: int
    """Last committed id."""
    head_published: int
    """End of the contiguous run that the broker has acknowledged, or that was skipped on record."""
    rows: int
    """Orders committed."""
    batches: int
    """Commits."""
    batch_rows_last: int
    """Rows of the last commit; `rows / batches` is the mean."""
    commit_latency: Latency
    """From the first statement of a commit to the server's answer, retries included."""
    publish_latency: Latency
    """From a send to the broker's acknowledgement, without sends that failed."""
    repeats: int
    """Orders whose key was accepted before, or that were refused for their key."""
    keys_remembered: int
    """Rows whose keys a repeat is compared with."""
    queue_rows: int
    """Orders that wait for a commit."""
    queue_bytes: int
    """Their keys and payloads."""
    publish_queue_bytes: int
    """Bytes of committed rows that wait for the broker."""
    publish_waits: int
    """Commits that waited because these bytes were too many."""
    publish_waited_seconds: float
    """How long they waited in total."""
    frames: int
    """Records that the broker acknowledged, without heartbeats."""
    heartbeats: int
    send_failures: int
    """Sends that failed or exceeded their deadline; each cost one producer."""
    take_overs: int
    """Epochs that this process raised; each one above 1 means a lost connection."""
    unknown_outcomes: int
    """Commits whose answer was lost, and which were read back."""
