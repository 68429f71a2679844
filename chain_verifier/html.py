"""The report for people: one page of HTML that needs nothing besides itself, and runs no script.

The template escapes everything that comes from a source (names, columns, texts). The content
security policy of the page also forbids it to load or run anything.
"""

from __future__ import annotations

import re
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from msgspec import Struct

from chain_kernel.text import counted
from chain_verifier.findings import KINDS_OF_BATCHES, Kind
from chain_verifier.report import Report, Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from chain_verifier.findings import Finding
    from chain_verifier.report import ChainsReport


class Origin(Struct, frozen=True, kw_only=True):
    """Origin of a page, so that it can be filed, and made once more."""

    made_at: datetime
    command: str
    """The command line, without passwords."""
    version: str


_SENTENCES: Final = {
    Verdict.COMPLETE: "Every row from start to head is there, once, and linked to the next.",
    Verdict.CONTIGUOUS: (
        "The rows are linked without a gap; nothing else says where they should end."
    ),
    Verdict.UNPROVEN: (
        "A source held nothing by which its chain could be proven: no row and no known head, or a "
        "topic without a frame of it. Is it the right source?"
    ),
    Verdict.BROKEN: "There are findings: see the table below.",
}

_TONES: Final = {Verdict.COMPLETE: "good", Verdict.CONTIGUOUS: "warn"}

_SHOWN_MAX: Final = 1_000
"""Maximum number of findings in the table: the JSON report holds more."""


def html_report(report: Report | ChainsReport, origin: Origin) -> str:
    """Return the page; for several chains, the verdict of each comes first, then all of each."""
    if isinstance(report, Report):
        title = f"Chain {report.chain_id}: {report.verdict}"
        chains, reports = None, [report]
    else:
        chains, reports = report, report.reports
        clean = sum(one.is_clean for one in reports)
        title = f"{clean} of {counted(len(report.outcomes), 'chain')} clean"
    return _TEMPLATES.get_template("report.html.jinja").render(
        title=title, is_clean=report.is_clean, chains=chains, reports=reports, origin=origin
    )


class Bar(Struct, frozen=True):
    """The ids of a source, or what a finding is of, in percent of all ids of a report."""

    left: float
    width: float
    label: str


def findings_bars(report: Report) -> list[tuple[str, list[Bar], list[Bar]]]:
    """Return per source its name, its ids, and its findings in their places."""
    ids = [id_ for one in report.sources for id_ in (one.first_id, one.last_id) if id_ is not None]
    low, high = min([report.start, *ids]), max([report.head or 0, *ids])

    def bar(first: int, last: int, label: str) -> Bar:
        left, right = (100 * (at - low) / max(1, high - low) for at in (first, last))
        left = min(left, 100)
        return Bar(left, min(100, right) - left, label)

    found = []
    for source in report.sources:
        own = []
        if source.first_id is not None and source.last_id is not None:
            own.append(bar(source.first_id, source.last_id, source.source))
        places = [
            bar(*place, one.sentence)
            for one in report.findings[:_SHOWN_MAX]
            if one.source == source.source and (place := _place_of(one)) is not None
        ]
        found.append((source.source, own, places))
    return found if ids or report.head else []


def _place_of(finding: Finding) -> tuple[int, int] | None:
    """Return the first and the last row that a finding names.

    A contradicted mark says of no row that it is the changed one: only its end is drawn, or it
    would cover all that was found.
    """
    after_id = None if finding.kind is Kind.CONTRADICTED_MARK else finding.after_id
    places = (after_id, finding.id, finding.until_id, finding.pid)
    first = next((place for place in places if place is not None), None)
    if first is None:
        return None
    ends = (finding.last_id, finding.until_id)
    return first, next((end for end in ends if end is not None and end >= first), first)


def _by_kind(counts: Mapping[str, int], row_counts: Mapping[str, int]) -> str:
    """Return how many findings there are of each kind; of how many rows or batches, if these are
    more.
    """
    found = []
    for kind, count in sorted(counts.items()):
        singles = row_counts.get(kind, count)
        unit = "batch" if kind in KINDS_OF_BATCHES else "row"
        of_rows = f" ({counted(singles, unit)})" if singles > count else ""
        found.append(f"{count:,} {kind}{of_rows}")
    return ", ".join(found)


def _grouped(notes: Sequence[str]) -> str:
    """Return notes, which hold no names, with separators in their numbers."""
    return re.sub(r"\b[0-9]{4,}\b", lambda number: f"{int(number[0]):,}", "; ".join(notes))


def _durations(report: Report) -> list[tuple[str, str]]:
    took = [(f"checking {one.source}", one.seconds) for one in report.sources]
    took += [(f"comparing {c.source} with {c.against}", c.seconds) for c in report.comparisons]
    if report.spark_start_seconds:
        took.insert(0, ("starting Spark", report.spark_start_seconds))
    took.append(("in all", report.seconds))
    return [(what, f"{seconds:,.2f}") for what, seconds in took]


def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("chain_verifier", ""),
        autoescape=True,
        extensions=["jinja2.ext.do"],
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(
        by_kind=_by_kind,
        bars=findings_bars,
        counted=counted,
        durations=_durations,
        grouped=_grouped,
        moment="{:%Y-%m-%d %H:%M:%S %Z}".format,
        number="{:,}".format,
        # Between these parts a path may break; no word elsewhere may.
        parts=partial(re.split, r"(?<=[/:])(?=[^\s/:])"),
        sentence=_SENTENCES.get,
        tone=lambda verdict: _TONES.get(verdict, "bad"),
    )
    made.globals.update(shown_max=_SHOWN_MAX)
    return made


_TEMPLATES: Final = _environment()
