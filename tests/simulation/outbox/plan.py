"""What one seed draws of a world of messages."""

from __future__ import annotations

from random import Random
from typing import ClassVar

from msgspec import Struct


class Plan(Struct, frozen=True, kw_only=True):
    """The world of one seed, in words; printed with a failure."""

    PLAINER: ClassVar[dict[str, object]] = {
        "commit_loss": 0.0, "broker_loss": 0.0, "crashes": 0.0, "loses_records": False,
        "databases": 1, "relays": 1, "consumers": 1, "processes": 1, "at_once": 1, "many": False,
        "keys": 1, "messages": 2, "failing": 0.0, "poison": 0.0, "fast": 1.0, "together": 1,
        "retires": False, "checked": False, "prepared": 0,
        "looks_up": False, "topics_come_late": False,
    }  # fmt: skip
    """See `SeedFailed`."""

    seed: int
    databases: int
    """Those of senders, all of them to one topic."""
    relays: int
    """Those of each database; the business runs in the process of the first one."""
    consumers: int
    processes: int
    """Those of each consumer, which share its partitions."""
    partitions: int
    messages: int
    """Those of each database."""
    together: int
    """Messages of one transaction, at most."""
    fast: float
    """Share of transactions whose messages are sent from memory; the sweep finds the others."""
    checked: bool
    """The business sends as in mode 5, and a callback service asks for what is not confirmed; the
    sweep is on."""
    prepared: int
    """Messages that a client of each database's service prepares, and decides on."""
    keys: int
    """0: none has a key."""
    confirms: bool
    """Whether consumers are asked to confirm."""
    idempotent: bool
    """The effect may be repeated, and no inbox is kept."""
    believes: bool
    """Consumers believe every record; else those alone that their senders have made."""
    at_once: int
    many: bool
    failing: float
    """Share of handlings that fail, or wait for a lock."""
    poison: float
    """Share of messages whose handling fails always."""
    tries_max: int
    looks_up: bool
    """Relays look into the inboxes before they send again."""
    topics_come_late: bool
    filter_ids: int
    """What the fast filter of a consumer remembers, at most."""
    filters: bool
    """What is merely queued at its consumer is spared a resend."""
    retires: bool
    """The inbox forgets within the world's time."""
    fault_seconds: float
    faults_per_second: float
    crashes: float
    """Share of lives that end at one of their first awaits."""
    commit_loss: float
    broker_loss: float
    loses_records: bool
    """The broker loses records that it has acknowledged."""

    @classmethod
    def draw(cls, seed: int) -> Plan:
        random = Random(f"messages of {seed}")
        idempotent, confirms = random.random() < 0.15, random.random() < 0.8
        return cls(
            seed=seed,
            databases=random.choice((1, 1, 2)),
            relays=random.choice((1, 2)),
            consumers=random.choice((1, 1, 2)) if confirms else 1,
            processes=random.choice((1, 2, 2, 3)),
            partitions=random.choice((1, 2, 3)),
            messages=random.randint(3, 10),
            together=random.choice((1, 3)),
            fast=random.choice((0.0, 0.7, 1.0)),
            checked=confirms and random.random() < 0.3,
            prepared=random.choice((0, 0, 3)),
            keys=random.choice((0, 1, 2, 5)),
            confirms=confirms,
            idempotent=idempotent,
            believes=random.random() < 0.5,
            at_once=random.choice((1, 1, 2, 3)),
            many=random.random() < 0.4,
            failing=random.choice((0.0, 0.1, 0.4)),
            poison=random.choice((0.0, 0.0, 0.2)),
            tries_max=random.choice((1, 2, 4)),
            looks_up=random.random() < 0.3,
            topics_come_late=random.random() < 0.1,
            filter_ids=random.choice((2, 8, 1_000)),
            filters=random.random() < 0.5,
            retires=random.random() < 0.3,
            fault_seconds=random.uniform(1.0, 6.0),
            faults_per_second=random.choice((0.0, 1.0, 2.0)),
            crashes=random.choice((0.0, 0.5, 0.9)),
            commit_loss=random.choice((0.0, 0.05, 0.2)),
            broker_loss=random.choice((0.0, 0.1, 0.3)),
            loses_records=confirms and random.random() < 0.2,
        )
