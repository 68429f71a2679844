"""What one seed draws: how large its world is, how bad, and how its parts are set."""

from __future__ import annotations

from random import Random
from typing import ClassVar

from msgspec import Struct

from .pairs import PAIRS

CHAIN_ID = 1


class Plan(Struct, frozen=True, kw_only=True):
    """The world of one seed, in words; printed with a failure."""

    PLAINER: ClassVar[dict[str, object]] = {
        "pairs": (), "old_primary": "never replaced", "fail_overs": 1, "wrong_seals": 0.0,
        "commit_loss": 0.0, "database_loss": 0.0, "broker_loss": 0.0, "link_loss": 0.0,
        "is_standby_stuck": False, "sources": "primary", "down_at_stop": "nothing",
        "broker_in_the_end": "there", "topic_records": 0, "topic_partitions": 1, "receivers": 1,
        "clients": 1, "sequencers": 1, "calls_per_client": 5, "is_time_ids": False,
        "refuses_without_kafka": False, "linger_seconds": 0.0, "patience_seconds": 1_000.0,
        "has_broker": True,
    }  # fmt: skip
    """See `SeedFailed`."""

    seed: int
    sequencers: int
    """The first to start leads, the others wait."""
    clients: int
    calls_per_client: int
    receivers: int
    fault_seconds: float
    """Virtual time with faults; then everything heals."""
    faults_per_second: float
    """Kills, pauses, crashes and the like."""
    commit_loss: float
    database_loss: float
    broker_loss: float
    link_loss: float
    """Shares of commits, of other questions, and of records that something happens to."""
    pairs: tuple[str, ...]
    """Two faults each, the second in the recovery from the first; one pair after the other."""
    old_primary: str
    """What becomes of a primary whose standby is promoted: it thaws, restarts or never answers."""
    fail_overs: int
    """How often that happens, where a primary is replaced at all: to the promoted one, too."""
    broker_in_the_end: str
    """There, away forever, or there without the topic, which is never made again."""
    starts_need_broker: bool
    """Sequencers do, before the chain was ever led."""
    receivers_need_broker: bool
    """They start without it where it never comes back."""
    stands_by: bool
    """A second sequencer waits; else it ends, and is started again, as by systemd."""
    sources: str
    """What receivers read: the primary, a standby that lags, or a list with the standby first."""
    is_standby_stuck: bool
    """A standby that is not read alone replays nothing any more, from some time on."""
    keeps_checkpoint_apart: bool
    """Receivers keep a journal and the checkpoint beside it, not both in one transaction."""
    is_time_ids: bool
    topic_records: int
    """Orders that come by a topic, 0 where there is none."""
    topic_partitions: int
    """At the start; one more may come later."""
    down_at_stop: str
    """What is away when everything is asked to stop at the end."""
    queue_bytes_max: int
    publish_queue_bytes_max: int
    """Small ones are full at times, so that callers wait and frames are forgotten."""
    publish_wait_seconds: float
    """A short one has a full queue forgotten soon, a long one has commits wait for the broker."""
    core_bounds: int
    """Nonces that a receiver knows, sights of a head; and in hundreds the bytes it can compare."""
    key_window_rows: int
    """A small one makes numbers of clients too old to know; there are no free-form keys then."""
    key_piece_rows: int
    """Rows of a page of keys: small, so that pages are made, stored and read at take-overs."""
    partition_ids: int
    takeover_skip_ids: int
    batch_rows_max: int
    page_rows: int
    patience_seconds: float
    """How long a matching service waits for a run, at most, before it gives up and asks again."""
    wrong_seals: float
    """Share of frames with a seal after their batch that is not the database's."""
    refuses_without_kafka: bool
    """Sequencers take no order while the broker is away; not where it never comes back."""
    publish_interval_seconds: float
    """None publishes each frame at once; the default has frames of full batches go together."""
    linger_seconds: float
    tail_rows_max: int
    """A small one has a tail skipped at a start, which is then on record."""
    has_broker: bool
    """Else receivers are notified through the database, and read all rows there."""

    @classmethod
    def draw(cls, seed: int) -> Plan:
        """Return the plan of `seed`."""
        random = Random(f"plan of {seed}")
        is_time_ids = random.random() < 0.2
        broker_in_the_end = random.choice((*["there"] * 5, "away", "without the topic"))
        return cls(
            seed=seed,
            sequencers=random.choice((1, 2, 2)),
            clients=random.choice((1, 2, 3)),
            calls_per_client=random.randint(5, 15),
            receivers=random.choice((1, 1, 2)),
            fault_seconds=random.uniform(2.0, 6.0),
            faults_per_second=random.choice((0.0, 1.0, 2.0, 4.0)),
            commit_loss=random.choice((0.0, 0.1, 0.3, 0.5)),
            database_loss=random.choice((0.0, 0.01, 0.05, 0.15)),
            broker_loss=random.choice((0.0, 0.1, 0.4)),
            link_loss=random.choice((0.0, 0.1, 0.5)),
            pairs=tuple(random.sample(list(PAIRS), random.choice((0, 1, 1, 2)))),
            old_primary=random.choice((*["never replaced"] * 3, "thawed", "restarted", "gone")),
            broker_in_the_end=broker_in_the_end,
            starts_need_broker=random.random() < 0.6,
            receivers_need_broker=broker_in_the_end == "there" and random.random() < 0.6,
            stands_by=random.random() < 0.7,
            sources=random.choice(("primary", "primary", "standby", "standby first")),
            is_standby_stuck=random.random() < 0.3,
            keeps_checkpoint_apart=random.random() < 0.25,
            is_time_ids=is_time_ids,
            topic_records=random.choice((0, 0, 5, 15)),
            topic_partitions=random.choice((1, 2)),
            down_at_stop=random.choice(("nothing", "database", "broker", "everything")),
            queue_bytes_max=random.choice((100, 1_000_000)),
            publish_queue_bytes_max=random.choice((60, 300, 1_000_000)),
            core_bounds=random.choice((2, 16)),
            key_window_rows=random.choice((8, 1_000_000, 1_000_000)),
            key_piece_rows=random.choice((4, 16, 65_536)),
            partition_ids=2**45 if is_time_ids else random.choice((200, 10_000)),
            takeover_skip_ids=random.choice((0, 50, 100_000)),
            batch_rows_max=random.choice((3, 3, 20, 100)),
            page_rows=random.choice((2, 10, 1_000)),
            patience_seconds=random.choice((0.005, 0.05, 1_000.0)),
            wrong_seals=random.choice((0.0, 0.0, 0.1, 0.5)),
            refuses_without_kafka=random.random() < 0.2,
            publish_wait_seconds=random.choice((0.05, 0.3, 1.0)),
            publish_interval_seconds=random.choice((0.0, 0.004, 0.004, 0.05)),
            linger_seconds=random.choice((0.0, 0.0, 0.01)),
            tail_rows_max=random.choice((100_000, 100_000, 5)),
            fail_overs=random.choice((1, 1, 2, 3)),
            has_broker=random.random() < 0.7,
        )
