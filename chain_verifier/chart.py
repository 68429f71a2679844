"""The pictures of the report for people, as shapes: the template draws them. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import Struct

from chain_kernel.text import counted
from chain_verifier.findings import Kind

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from chain_verifier.chart_data import ChartData, Tile
    from chain_verifier.findings import Finding
    from chain_verifier.report import Report

WIDTH: Final = 900
"""Pictures are drawn this wide, and stretched to the width of the page; texts are beside them."""

IDS_HEIGHT: Final = 240
SIZES_HEIGHT: Final = 120
STRIP_HEIGHT: Final = 20
_LABEL_SHARE: Final = 18.0
"""Percent of the width that the number of an epoch takes on a telephone."""

_MARKS_MAX: Final = 500
"""More marks than this are one red line anyway."""


class Rect(Struct, frozen=True):
    """A rectangle of a class of `report.css`, with the text that shows when it is pointed at."""

    kind: str
    x: float
    y: float
    width: float
    height: float
    label: str = ""


class ChainChart(Struct, frozen=True, kw_only=True):
    """Ids over time with epochs and filled gaps, and sizes of batches over time."""

    labels: list[tuple[str, int]]
    """Where the number of an epoch stands, in the words of CSS, and the number."""
    bands: list[Rect]
    """One per epoch, every other one shaded."""
    points: str
    """The line of ids, in the words of SVG."""
    gaps: list[Rect]
    sizes: list[Rect]


class Strip(Struct, frozen=True, kw_only=True):
    """One bar per source, from its first id to its last, with a mark at each finding."""

    low: int
    high: int
    bars: list[tuple[str, list[Rect]]]


class _Scale(Struct, frozen=True):
    """A straight line from values to pixels; a single value is in the middle."""

    low: float
    high: float
    first: float
    last: float

    def at(self, value: float) -> float:
        if self.high <= self.low:
            return round((self.first + self.last) / 2, 1)
        share = min(1.0, max(0.0, (value - self.low) / (self.high - self.low)))
        return round(self.first + share * (self.last - self.first), 1)


def chain_chart(chart_data: ChartData | None) -> ChainChart | None:
    """Return the pictures of a chain; None without a batch to draw."""
    if chart_data is None or not chart_data.tiles:
        return None
    tiles = chart_data.tiles
    times = _Scale(
        min(tile.began_at for tile in tiles).timestamp(),
        max(tile.ended_at for tile in tiles).timestamp(),
        0,
        WIDTH,
    )
    spans = [
        (tile, times.at(tile.began_at.timestamp()), times.at(tile.ended_at.timestamp()))
        for tile in tiles
    ]
    ids = _Scale(tiles[0].first_id, tiles[-1].last_id, IDS_HEIGHT - 4, 4)
    epochs = _epochs(spans)
    return ChainChart(
        labels=list(_labels(epochs)),
        bands=[
            Rect(kind, left, 0, max(1, right - left), IDS_HEIGHT, f"epoch {epoch:,}")
            for number, (epoch, left, right) in enumerate(epochs)
            for kind in ("band" if number % 2 else "band odd",)
        ],
        points=" ".join(
            f"{left},{ids.at(tile.first_id)} {right},{ids.at(tile.last_id)}"
            for tile, left, right in spans
        ),
        gaps=list(_gaps(chart_data, times, ids)),
        sizes=list(_sizes(spans)),
    )


_Span = tuple["Tile", float, float]
"""A tile, and where it begins and ends."""


def _epochs(spans: Sequence[_Span]) -> list[tuple[int, float, float]]:
    """Return the epochs, each with where it begins and ends."""
    found: list[tuple[int, float, float]] = []
    for tile, began, ended in spans:
        if found and found[-1][0] == tile.epoch:
            found[-1] = (tile.epoch, found[-1][1], ended)
        else:
            found.append((tile.epoch, began, ended))
    return found


def _labels(epochs: Sequence[tuple[int, float, float]]) -> Iterator[tuple[str, int]]:
    """Yield the numbers of the epochs where they fit; one at the edge ends with the picture."""
    label_from = 0.0
    for epoch, left, _ in epochs:
        at = 100 * left / WIDTH
        if min(at, 100 - _LABEL_SHARE) >= label_from:
            yield (f"left: {at:.1f}%" if at <= 100 - _LABEL_SHARE else "right: 0"), epoch
            label_from = at + _LABEL_SHARE


def _gaps(chart_data: ChartData, times: _Scale, ids: _Scale) -> Iterator[Rect]:
    for gap in chart_data.gaps:
        top, bottom = ids.at(gap.until_id), ids.at(gap.after_id)
        span = f"after {gap.after_id:,} up to {gap.until_id:,}"
        label = f"{gap.receiver}: {gap.cause}, {span}, {gap.outcome}"
        at = times.at(gap.found_at.timestamp())
        yield Rect("gap", at - 2, top - 2, 4, bottom - top + 4, label)


def _sizes(spans: Sequence[_Span]) -> Iterator[Rect]:
    sizes = _Scale(0, max(tile.rows_max for tile, _, _ in spans), SIZES_HEIGHT, 4)
    for tile, left, right in spans:
        mean = tile.rows / tile.batches
        batches = counted(tile.batches, "batch")
        label = f"{batches}, rows of each: {mean:,.0f}, at most {tile.rows_max:,}"
        for kind, value in (("most", float(tile.rows_max)), ("mean", mean)):
            at = sizes.at(value)
            yield Rect(kind, left, at, max(2.5, right - left), SIZES_HEIGHT - at, label)


def findings_strip(report: Report) -> Strip | None:
    """Return the bars of a report; None without a row and a head."""
    ids = [id_ for one in report.sources for id_ in (one.first_id, one.last_id) if id_ is not None]
    if not ids and not report.head:
        return None
    low, high = min([report.start, *ids]), max([report.head or 0, *ids])
    scale = _Scale(low, high, 0, WIDTH)
    bars = []
    for source in report.sources:
        bar = [Rect("track", 0, 3, WIDTH, 14)]
        if source.first_id is not None and source.last_id is not None:
            left, right = scale.at(source.first_id), scale.at(source.last_id)
            bar.append(Rect("bar", left, 3, max(1, right - left), 14, source.source))
        own = [one for one in report.findings if one.source == source.source][:_MARKS_MAX]
        marks = (_mark(one, scale) for one in own)
        bars.append((source.source, bar + [mark for mark in marks if mark is not None]))
    return Strip(low=low, high=high, bars=bars)


def _mark(finding: Finding, scale: _Scale) -> Rect | None:
    """Return a mark from the first row that a finding names to the last.

    A contradicted mark says of no row that it is the changed one: only its end is drawn, or it
    would cover all that was found.
    """
    is_mark = finding.kind is Kind.CONTRADICTED_MARK
    after_id = None if is_mark else finding.after_id
    places = (after_id, finding.id, finding.until_id, finding.pid)
    first = next((place for place in places if place is not None), None)
    if first is None:
        return None
    ends = (finding.last_id, finding.until_id)
    last = next((end for end in ends if end is not None and end >= first), first)
    left = scale.at(first)
    # Without a width it would not be drawn at all; its border makes it wide enough to be seen.
    width = max(0.1, scale.at(last) - left)
    return Rect("fault", left, 0, width, STRIP_HEIGHT, finding.sentence)
