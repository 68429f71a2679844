"""What a relay has done since its start, as numbers."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from orderchain.monitoring import Metric


@dataclass
class RelayStats:
    """Counters of this process; they only rise. Other processes may run alongside it."""

    sent: int = 0
    """Messages that the broker has acknowledged."""
    swept: int = 0
    """Deliveries that the sweep has claimed, woken or due; none if the fast path did all."""
    resent: int = 0
    """Those of them that were not sent for the first time."""
    queued: int = 0
    """Times that a due delivery was left alone, since its consumer had not reached it yet."""
    found_applied: int = 0
    """Deliveries that were due, and found in the consumer's own log."""
    released: int = 0
    """Messages whose claim was given back, since the broker was away or nobody could send."""
    failed: int = 0
    """Messages whose send failed though the broker was there: that counted as a try."""
    abnormal: int = 0
    """Deliveries that became abnormal."""
    acks_written: int = 0
    """Deliveries for which status 1 was written."""
    acks_overtaken: int = 0
    """Deliveries for which it was not written, since their consumer had confirmed by then."""
    done_by_broker: int = 0
    consumed: int = 0
    early: int = 0
    """Confirms that came before the broker's acknowledgement was written."""
    late: int = 0
    """Confirms of deliveries that had become abnormal."""
    repeated: int = 0
    """Confirms of deliveries that were already done."""
    unknown: int = 0
    """Confirms for deliveries that are not known, or no longer remembered."""
    retrying: int = 0
    """Confirms in which a consumer said that it will retry by itself."""
    bad_confirms: Counter[str] = field(default_factory=Counter)
    """Records on confirm topics that were dropped, by reason."""
    broker_away: int = 0
    """Times that the broker was found to be away."""
    silent: int = 0
    """Reports of consumers that were not heard from although messages waited for them."""
    survivors: int = 0
    """Unfinished messages that were moved out of dropped partitions."""
    partitions_dropped: int = 0
    failed_kept: int = 0
    """Messages of failed businesses that were kept for people to look at."""
    failed_dropped: int = 0
    """Messages of failed businesses that were dropped: too many."""
    found_full: int = 0
    """Rounds of retention that found the outbox full, so that nothing more is added."""
    alerts_failed: int = 0


_HELP: Final = {
    "sent": "Messages that the broker has acknowledged.",
    "swept": "Deliveries that the sweep has claimed.",
    "resent": "Those of them that were not sent for the first time.",
    "queued": "Due deliveries that were left alone, since their consumer had not reached them.",
    "found_applied": "Due deliveries that were found in the consumer's own log.",
    "released": "Messages whose claim was given back, since nobody could send.",
    "failed": "Messages whose send failed though the broker was there.",
    "abnormal": "Deliveries that became abnormal.",
    "acks_written": "Deliveries for which the broker's acknowledgement was written.",
    "acks_overtaken": "Deliveries for which it need not be written.",
    "done_by_broker": "Deliveries that the broker's acknowledgement finished.",
    "consumed": "Deliveries that their consumer confirmed.",
    "early": "Confirms that came before the broker's acknowledgement was written.",
    "late": "Confirms of deliveries that had become abnormal.",
    "repeated": "Confirms of deliveries that were already done.",
    "unknown": "Confirms for deliveries that are not known.",
    "retrying": "Confirms in which a consumer said that it will retry by itself.",
    "bad_confirms": "Records on confirm topics that were dropped.",
    "broker_away": "Times that the broker was found to be away.",
    "silent": "Reports of consumers that were not heard from.",
    "survivors": "Unfinished messages that were moved out of dropped partitions.",
    "partitions_dropped": "Partitions dropped.",
    "failed_kept": "Messages of failed businesses that were kept.",
    "failed_dropped": "Messages of failed businesses that were dropped: too many.",
    "found_full": "Rounds of retention that found the outbox full.",
    "alerts_failed": "Alerts that could not be delivered.",
}


def _counter(name: str, text: str) -> Metric[RelayStats]:
    label = "reason" if name == "bad_confirms" else ""
    full = f"orderchain_outbox_relay_{name}_total"
    return Metric(full, "counter", text, lambda stats: getattr(stats, name), label)


METRICS: Final = tuple(_counter(name, text) for name, text in _HELP.items())
"""What a relay counts. A message service exports the same names."""

WAITING: Final = Metric[int](
    "orderchain_outbox_waiting", "gauge", "Messages in memory, to be sent.", float
)
