"""The result of a demo: for people as a table, for machines as JSON."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from chain_kernel.text import counted
from orderchain_demo.books import QUANTITY_MAX
from orderchain_demo.verify import objections

if TYPE_CHECKING:
    from collections.abc import Iterable

    from orderchain_demo.scenario import Outcome, Plan
    from orderchain_demo.verify import Verified


class Summary(Struct, frozen=True, kw_only=True):
    """All that a demo reports. The counters of a killed process are those of its last report."""

    whole: bool
    """Every order was delivered once, in order, and all results are the same."""
    not_whole: list[str]
    """Objections, one line each; empty when `whole`."""
    chain: int
    seed: int
    orders: int
    frames_sent: int
    """Frames with orders that Kafka has acknowledged."""
    link: dict[str, int]
    receiver: dict[str, int]
    last_gap_shown_by: str
    journal_rows_cut: int
    """Journal rows after the stored state, cut off at the restart and written again."""
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
    wrong_books: list[dict[str, Any]] | None
    """Stored books that Spark's replay of the chain contradicts; null without Spark."""
    second_version: list[dict[str, Any]] | None
    """For each book, the first order on which a second version with one changed rule differs; null
    without Spark."""
    journal: str
    commands: dict[str, str]
    """Shell lines for what the demo has left."""
    phases: dict[str, float]
    """Seconds of each part of the demo."""
    seconds: float


def summarize(
    plan: Plan,
    outcome: Outcome,
    verdict: Verified,
    verifier: str,
    *,
    commands: dict[str, str],
    phases: dict[str, float],
) -> Summary:
    """Return the summary, the judgement included. `verdict` is that of `verifier`."""
    orders, lives = plan.orders, outcome.lives
    finished, faults = lives[-1], objections(verdict.report, orders.rows)
    not_whole = list(faults)
    for book in verdict.wrong_books or ():
        since = f"after id {book['equal_id']}" if book["equal_id"] else "at the first orders"
        wrong = f"it went wrong {since}, and not later than id {book['id']}"
        not_whole.append(f"book of {book['group']}: {wrong}")
    if outcome.rows != orders.rows:
        not_whole.append(f"{outcome.rows} rows sequenced, {orders.rows} in the input")
    if finished.digest != orders.digest:
        not_whole.append(f"state: {finished.digest}, straight from the input {orders.digest}")
    return Summary(
        whole=not not_whole,
        not_whole=not_whole,
        chain=plan.setup.chain_id,
        seed=plan.seed,
        orders=orders.rows,
        frames_sent=outcome.frames,
        link=_summed(life.link for life in lives),
        receiver=_summed(life.receiver for life in lives),
        last_gap_shown_by=finished.last_gap_shown_by,
        journal_rows_cut=finished.journal_rows_cut,
        sequenced_per_second=_rate(outcome.rows, outcome.seconds),
        delivered_per_second=_rate(finished.rows, finished.seconds),
        book=finished.book,
        digest=finished.digest,
        digest_straight=orders.digest,
        verified_by=verifier,
        verified_clean=not faults,
        verified=verdict.report,
        wrong_books=verdict.wrong_books,
        second_version=verdict.second_version,
        journal=str(plan.journal),
        commands=commands,
        phases=phases,
        seconds=sum(phases.values()),
    )


def summary_rows(summary: Summary) -> list[tuple[str, str]]:
    """Return the summary as lines of a table."""
    link, receiver = summary.link, summary.receiver
    last = f"dropped; shown by {summary.last_gap_shown_by or 'nothing'}"
    is_same = summary.digest == summary.digest_straight
    phases = ", ".join(f"{name} {seconds:.1f}" for name, seconds in summary.phases.items())
    return [
        ("orders sequenced", f"{summary.orders:,} (chain {summary.chain}, seed {summary.seed})"),
        ("frames sent", f"{summary.frames_sent:,}"),
        (
            "frames dropped",
            f"{link['dropped']:,} of {link['frames']:,} that came while it was alive",
        ),
        ("the last frame", last if link["last_dropped"] else "came"),
        ("frames repeated", f"{link['repeated']:,}, reordered {link['reordered']:,}"),
        ("gaps found and filled", f"{receiver['gaps']:,}"),
        ("rows filled", f"{receiver['rows_filled']:,}"),
        ("duplicates dropped", counted(receiver["frames_duplicate"], "frame")),
        (
            "restarts",
            f"1, after SIGKILL: {counted(receiver['rows_caught_up'], 'row')} caught up, "
            f"{counted(summary.journal_rows_cut, 'journal row')} cut back",
        ),
        ("rate of sequencing", f"{summary.sequenced_per_second:,.0f} orders/s"),
        ("rate of delivery", f"{summary.delivered_per_second:,.0f} orders/s"),
        ("book", ", ".join(f"{name} {count:,}" for name, count in summary.book.items())),
        (
            "state and straight input",
            f"{'equal' if is_same else 'DIFFERENT'} ({summary.digest[:16]}...)",
        ),
        (
            f"verified by {summary.verified_by}",
            "database and journal whole and equal" if summary.verified_clean else "FINDINGS",
        ),
        *_replayed(summary.wrong_books, summary.second_version),
        ("in all", f"{summary.seconds:.1f} s: {phases}"),
        ("verdict", "WHOLE" if summary.whole else "NOT WHOLE"),
    ]


def _replayed(
    wrong_books: list[dict[str, Any]] | None, second_version: list[dict[str, Any]] | None
) -> list[tuple[str, str]]:
    if wrong_books is None:
        return []
    wrong = ", ".join(book["group"] for book in wrong_books)
    found = f"WRONG: {wrong}" if wrong else "each one right after each save"
    rows = [("books replayed by Spark", found)]
    for first in (second_version or [])[:1]:
        rule = f"without orders above {QUANTITY_MAX:,}"
        differs = f"differs from id {first['id']} on, an order of {first['group']}"
        rows.append(("a second version of them", f"{rule}: {differs}"))
    return rows


def _summed(counters: Iterable[dict[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for each in counters:
        total.update(each)
    return dict(total)


def _rate(rows: int, seconds: float) -> float:
    return rows / seconds if seconds > 0 else 0.0
