"""The result of a demo: for people as a table, for machines as JSON."""

from __future__ import annotations

from functools import reduce
from operator import add
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from chain_kernel.text import counted
from orderchain_demo.lossy_link import LinkCounters
from orderchain_demo.processes import ReceiverCounters
from orderchain_demo.spark_check import objections

if TYPE_CHECKING:
    from orderchain_demo import DemoOptions
    from orderchain_demo.preparation import ExpectedState
    from orderchain_demo.scenario import Plan, ScenarioOutcome, ServiceLife


class Summary(Struct, frozen=True, kw_only=True):
    """All that a demo reports. The counters of a killed process are those of its last report."""

    whole: bool
    """Every order was delivered once, in order, and all results are the same."""
    not_whole: list[str]
    """What speaks against it, one line each; empty when `whole`."""
    chain: int
    input: str
    seed: int
    orders: int
    first_id: int
    last_id: int
    frames_sent: int
    """Frames with orders that Kafka has acknowledged."""
    link: LinkCounters
    receiver: ReceiverCounters
    last_gap_shown_by: str
    rows_delivered: int
    """Rows handed to the service in all its lives; more than `orders` after a kill."""
    restarts: int
    journal_rows_cut: int
    """Journal rows after the stored state, cut off at the restart and written again."""
    saves: int
    sequenced_per_second: float
    delivered_per_second: float
    book: dict[str, int]
    digest: str
    """Digest of the matching service's state."""
    digest_straight: str
    """Digest of the same orders applied straight from the input."""
    verified_by: str
    verified_clean: bool
    verified: dict[str, Any]
    """The report of `chainctl verify`."""
    journal: str
    commands: dict[str, str]
    """Shell lines for what the demo has left."""
    phases: dict[str, float]
    """Seconds of each part of the demo."""
    seconds: float


def summarize(
    plan: Plan,
    options: DemoOptions,
    outcome: ScenarioOutcome,
    report: dict[str, Any],
    *,
    commands: dict[str, str],
    phases: dict[str, float],
) -> Summary:
    """Return the summary, the judgement included. `report` is the verifier's."""
    expected, finished, lives = plan.demo_input.expected, outcome.finished, outcome.lives
    not_whole = _objections(expected, outcome, report)
    return Summary(
        whole=not not_whole,
        not_whole=not_whole,
        chain=plan.setup.chain_id,
        input=str(plan.demo_input.path),
        seed=options.seed,
        orders=expected.rows,
        first_id=outcome.sequenced.first_id,
        last_id=outcome.sequenced.last_id,
        frames_sent=outcome.sequenced.frames,
        link=reduce(add, (life.delivered.link for life in lives), LinkCounters()),
        receiver=reduce(add, (life.delivered.receiver for life in lives), ReceiverCounters()),
        last_gap_shown_by=finished.last_gap_shown_by,
        rows_delivered=sum(life.delivered.rows for life in lives),
        restarts=len(lives) - 1,
        journal_rows_cut=sum(life.resumed.journal_rows_cut for life in lives),
        saves=sum(life.delivered.saves for life in lives),
        sequenced_per_second=_rate(outcome.sequenced.rows, outcome.sequenced.seconds),
        delivered_per_second=_delivery_rate(lives),
        book=finished.counters,
        digest=finished.digest,
        digest_straight=expected.digest,
        verified_by=options.verifier,
        verified_clean=not objections(report, expected.rows),
        verified=report,
        journal=str(plan.journal),
        commands=commands,
        phases=phases,
        seconds=sum(phases.values()),
    )


def _objections(
    expected: ExpectedState, outcome: ScenarioOutcome, report: dict[str, Any]
) -> list[str]:
    """Return what speaks against a whole demo; empty when all results are the same."""
    finished, rows = outcome.finished, expected.rows
    reported = finished.counters | {
        "state": finished.digest,
        "rows delivered": finished.delivered.events,
        "rows sequenced": outcome.sequenced.rows,
    }
    due = expected.counters | {
        "state": expected.digest,
        "rows delivered": rows,
        "rows sequenced": rows,
    }
    found = [
        f"{name}: {reported.get(name)}, straight from the input {due.get(name)}"
        for name in sorted(reported.keys() | due.keys())
        if reported.get(name) != due.get(name)
    ]
    return found + objections(report, rows)


def summary_rows(summary: Summary) -> list[tuple[str, str]]:
    """Return the summary as lines of a table."""
    link, receiver = summary.link, summary.receiver
    is_same = summary.digest == summary.digest_straight
    digests = "equal" if is_same else "DIFFERENT"
    return [
        ("orders sequenced", f"{summary.orders:,} (chain {summary.chain}, seed {summary.seed})"),
        ("frames sent", f"{summary.frames_sent:,}"),
        ("frames dropped", f"{link.dropped:,} of {link.frames:,} that came while it was alive"),
        ("the last frame", _last_frame(summary)),
        ("heartbeats dropped", f"{link.heartbeats_dropped:,} of {link.heartbeats:,}"),
        ("frames repeated", f"{link.repeated:,}"),
        ("frames reordered", f"{link.reordered:,}, delayed {link.delayed:,}"),
        ("gaps found and filled", f"{receiver.gaps:,}"),
        ("rows filled", f"{receiver.rows_filled:,}"),
        ("duplicates dropped", counted(receiver.frames_duplicate, "frame")),
        (
            "restarts",
            f"{summary.restarts}, after SIGKILL: "
            f"{counted(receiver.rows_caught_up, 'row')} caught up, "
            f"{counted(summary.journal_rows_cut, 'journal row')} cut back",
        ),
        ("rate of sequencing", f"{summary.sequenced_per_second:,.0f} orders/s"),
        ("rate of delivery", f"{summary.delivered_per_second:,.0f} orders/s"),
        ("book", ", ".join(f"{name} {count:,}" for name, count in summary.book.items())),
        ("state and straight input", f"{digests} ({summary.digest[:16]}...)"),
        (
            f"verified by {summary.verified_by}",
            "database and journal whole and equal" if summary.verified_clean else "FINDINGS",
        ),
        ("in all", f"{summary.seconds:.1f} s: {_phases(summary)}"),
        ("verdict", "WHOLE" if summary.whole else "NOT WHOLE"),
    ]


def _last_frame(summary: Summary) -> str:
    if not summary.link.last_dropped:
        return "came"
    return f"dropped; that it was lacking showed by {summary.last_gap_shown_by or 'nothing'}"


def _phases(summary: Summary) -> str:
    return ", ".join(f"{name} {seconds:.1f}" for name, seconds in summary.phases.items())


def _rate(rows: int, seconds: float) -> float:
    return rows / seconds if seconds > 0 else 0.0


def _delivery_rate(lives: list[ServiceLife]) -> float:
    """Return rows per second from the first row to the last of each life."""
    return _rate(
        sum(life.delivered.rows for life in lives), sum(life.delivered.seconds for life in lives)
    )
