"""What a sequencer tells of itself."""

from __future__ import annotations

from msgspec import Struct

from sequencer.latency import Latency


class SequencerStats(Struct, frozen=True, kw_only=True):
    """A look at one instant; every counter counts from the start of this process."""

    chain_id: int
    name: str
    """The one that its config gives it, as operators see it."""
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
    """From the first statement of a commit to the server's word, tries again included."""
    publish_latency: Latency
    """From a send to the broker's acknowledgement, without sends that failed."""
    repeats: int
    """Orders whose key was accepted before, or refused for their key."""
    keys_remembered: int
    """Rows whose keys a repeat is compared with."""
    queue_rows: int
    """Orders that wait for a commit."""
    queue_bytes: int
    """Their keys and payloads."""
    publish_queue_bytes: int
    """Bytes of committed rows that wait for the broker."""
    publish_waits: int
    """Commits that were held up because those were too many."""
    publish_waited_seconds: float
    """How long, all together."""
    frames: int
    """Records that the broker acknowledged, without heartbeats."""
    heartbeats: int
    send_failures: int
    """Sends that failed or ran into their deadline; each cost a producer."""
    take_overs: int
    """Epochs raised by this process; above 1 each stands for a lost connection."""
    unknown_outcomes: int
    """Commits whose answer was lost, and which were read back."""
