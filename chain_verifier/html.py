"""The report for people: one page of HTML that needs nothing besides itself, and runs no script.

The template escapes everything that comes from a source (names, columns, texts). The content
security policy of the page also forbids it to load or run anything.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from msgspec import Struct

from chain_kernel.text import counted
from chain_verifier import chart
from chain_verifier.findings import KINDS_OF_BATCHES
from chain_verifier.report import Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from chain_verifier.chart_data import ChartData
    from chain_verifier.report import ChainsReport, Report


class Origin(Struct, frozen=True, kw_only=True):
    """How a page came about, so that it can be filed, and made once more."""

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


def html_report(report: Report, chart_data: ChartData | None, origin: Origin) -> str:
    """Return the page; `chart_data` is None without a database that shows batches and epochs."""
    return _page(
        title=f"Chain {report.chain_id}: {report.verdict}",
        is_clean=report.is_clean,
        chains=None,
        reports=[report],
        pictures={report.chain_id: chart_data},
        origin=origin,
    )


def html_chains_report(
    chains: ChainsReport, pictures: Mapping[int, ChartData | None], origin: Origin
) -> str:
    """Return one page for several chains: the verdict of each, then everything of each."""
    clean = sum(report.is_clean for report in chains.reports)
    return _page(
        title=f"{clean} of {counted(len(chains.outcomes), 'chain')} clean",
        is_clean=chains.is_clean,
        chains=chains,
        reports=chains.reports,
        pictures=pictures,
        origin=origin,
    )


def _page(**values: Any) -> str:  # noqa: ANN401 - own type per value
    return _TEMPLATES.get_template("report.html.jinja").render(values)


def _parts(text: str) -> list[str]:
    """Return the parts between which a path may break; no word elsewhere may."""
    return re.split(r"(?<=[/:])(?=[^\s/:])", text)


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
    return re.sub(r"\b\d{4,}\b", lambda number: f"{int(number[0]):,}", "; ".join(notes))


def _durations(report: Report) -> list[tuple[str, str]]:
    took = [(f"checking {one.source}", one.seconds) for one in report.sources]
    took += [(f"comparing {c.source} with {c.against}", c.seconds) for c in report.comparisons]
    if report.spark_start_seconds:
        took.insert(0, ("starting Spark", report.spark_start_seconds))
    took.append(("in all", report.seconds))
    return [(what, f"{seconds:,.2f}") for what, seconds in took]


def _legend(chart_data: ChartData) -> list[str]:
    batches = counted(sum(tile.batches for tile in chart_data.tiles), "batch")
    unfilled = sum(gap.outcome != "filled" for gap in chart_data.gaps)
    gaps = f"{counted(len(chart_data.gaps), 'gap')} that receivers met"
    gaps += f", {unfilled:,} not filled" if unfilled else ""
    return [f"ids; mean rows of {batches}", "rows of the largest batch", gaps, "epochs"]


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
        chain_chart=chart.chain_chart,
        counted=counted,
        durations=_durations,
        grouped=_grouped,
        legend=_legend,
        moment="{:%Y-%m-%d %H:%M:%S %Z}".format,
        number="{:,}".format,
        parts=_parts,
        sentence=_SENTENCES.get,
        strip=chart.findings_strip,
        tone=lambda verdict: _TONES.get(verdict, "bad"),
    )
    made.globals.update(chart=chart, shown_max=_SHOWN_MAX)
    return made


_TEMPLATES: Final = _environment()
