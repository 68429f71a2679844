"""Small wrongs done to the engine, each of which the simulation must find.

What is in SQL (the fence, the compare-and-set of a checkpoint) is done to the database in
memory; the tests of the contract hold that to what PostgreSQL does.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from . import wrongs_receiving as receiving
from . import wrongs_sequencing as sequencing
from .world import simulate

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager


@dataclass(frozen=True)
class Mutation:
    """A wrong, and within how many seeds, from 0 on, it must be found.

    About ten times as many as it takes in the mean: what a seed draws changes with the code.
    """

    done: Callable[[], AbstractContextManager[None]]
    seeds: int
    found_by: tuple[str, ...]
    """The invariants one of which must be broken."""
    changes: dict[str, Any] = field(default_factory=dict)
    """What worlds need to be prone to it."""
    simulate: Callable[..., object] = simulate
    """What lives through a world of its kind."""

    @property
    def name(self) -> str:
        return self.done.__name__


TOO_OLD: dict[str, object] = {"key_window_rows": 8, "key_piece_rows": 4}

LED_FOR_LONG: dict[str, object] = {
    "sequencers": 1, "clients": 3, "calls_per_client": 15, "database_loss": 0.0, "commit_loss": 0.0,
    "fault_seconds": 6.0, "faults_per_second": 2.0, "pairs": (),
}  # fmt: skip
"""A leader that has callers when its clock jumps."""

FULL_QUEUE: dict[str, object] = {"publish_queue_bytes_max": 300, "batch_rows_max": 3}
"""Small batches: two of them may come on top of the bound."""

COMES_BACK: dict[str, object] = {"old_primary": "restarted", "sources": "primary"}

MUTATIONS = (
    Mutation(sequencing.keys_of_any_primary, 100, ("G3", "G4", "RowsMissing"), COMES_BACK),
    Mutation(sequencing.lease_of_any_primary, 50, ("fenced itself", "G15"), COMES_BACK),
    Mutation(sequencing.any_primary_led, 400, ("G15", "G17"), COMES_BACK),
    Mutation(receiving.rows_of_any_primary, 100, ("G2", "G5", "G8", "G14"), COMES_BACK),
    Mutation(sequencing.no_fence, 100, ("G1", "G7")),
    Mutation(sequencing.blind_retry, 100, ("G4", "G9")),
    Mutation(
        sequencing.early_reading_back,
        400,
        ("G4", "G9"),
        {"commit_loss": 0.5, "database_loss": 0.01},
    ),
    Mutation(sequencing.sent_ahead_and_forgotten, 400, ("G4", "G9", "G1", "fenced itself")),
    Mutation(sequencing.acknowledged_before_commit, 10, ("G3",)),
    Mutation(sequencing.published_before_commit, 20, ("G2",)),
    Mutation(sequencing.lost_send_taken_for_success, 50, ("G14 published",)),
    Mutation(sequencing.keys_not_loaded, 100, ("G4", "NumberOutOfOrder")),
    Mutation(receiving.gap_skipped, 150, ("G5", "rows missing")),
    Mutation(receiving.senders_believed, 100, ("G2", "G5")),
    Mutation(receiving.silence, 50, ("G14",)),
    Mutation(receiving.checkpoint_before_delivery, 50, ("G5",)),
    Mutation(receiving.fill_with_a_hole, 20, ("G11",)),
    Mutation(receiving.checkpoint_without_comparing, 150, ("G5",)),
    Mutation(sequencing.offsets_before_rows, 20, ("G4 intake passed by",)),
    Mutation(sequencing.offsets_after_rows, 20, ("G4 intake: row without",)),
    Mutation(sequencing.keys_forgotten_early, 200, ("G4 too old within",), TOO_OLD),
    Mutation(sequencing.too_old_called_never_accepted, 100, ("G9", "NumberOutOfOrder"), TOO_OLD),
    # Rows are compared with the primary's alone: where there is none, such a receiver waits.
    Mutation(receiving.standby_believed, 50, ("G8", "G14"), {"sources": "standby"}),
    Mutation(sequencing.stop_without_deadline, 150, ("G17", "G15"), {"down_at_stop": "everything"}),
    Mutation(
        receiving.primary_never_asked,
        100,
        ("G14",),
        {"sources": "standby first", "is_standby_stuck": True},
    ),
    Mutation(
        sequencing.publish_queue_without_bound,
        50,
        ("G18",),
        {
            **FULL_QUEUE,
            "publish_wait_seconds": 0.05,
            "broker_in_the_end": "away",
            "receivers_need_broker": False,
            "publish_interval_seconds": 0.0,
        },
    ),
    Mutation(
        sequencing.full_queue_holds_up_nothing,
        150,
        ("G18",),
        {**FULL_QUEUE, "publish_wait_seconds": 1.0},
    ),
    Mutation(sequencing.part_that_dies_in_silence, 100, ("G17", "G15")),
    Mutation(sequencing.callers_in_no_list, 300, ("G15", "a caller waits"), LED_FOR_LONG),
    Mutation(sequencing.warning_taken_for_success, 150, ("G3 not replicated",)),
    Mutation(
        sequencing.mark_before_orders,
        150,
        ("G4 intake", "G15 intake"),
        {"refuses_without_kafka": True, "broker_in_the_end": "there", "topic_records": 15},
    ),
    Mutation(
        sequencing.take_over_needs_the_broker,
        50,
        ("after its take-over", "G15 no leader"),
        {"broker_in_the_end": "away", "receivers_need_broker": False},
    ),
    Mutation(
        sequencing.take_over_needs_the_topic,
        100,
        ("ended for its topic",),
        {"pairs": ("topic gone at a take over",)},
    ),
    Mutation(sequencing.dead_leader_waited_for, 50, ("G15 no leader",)),
    Mutation(sequencing.start_ends_with_its_connection, 200, ("after its take-over",)),
    Mutation(
        sequencing.own_tries_forgotten,
        200,
        ("fenced itself",),
        {"pairs": ("synchronous standby gone at a take over",)},
    ),
    Mutation(
        sequencing.full_queue_waits_without_end,
        100,
        ("G17 a caller waits",),
        {**FULL_QUEUE, "broker_in_the_end": "away", "receivers_need_broker": False},
    ),
    Mutation(receiving.ledger_without_bound, 50, ("G18",)),
    Mutation(receiving.cancelled_wait_ends_its_work, 50, ("G14",), {"patience_seconds": 0.005}),
    Mutation(
        receiving.head_moved_before_a_wait,
        50,
        ("G5", "rows missing", "G14"),
        {"patience_seconds": 0.05},
    ),
    Mutation(
        receiving.frame_believed_about_its_seal, 50, ("G13 seal of run",), {"wrong_seals": 0.5}
    ),
)
