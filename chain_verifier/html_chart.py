"""Draws a chain as SVG: ids over time, batches, epochs, filled gaps, where findings lie."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from orderchain.counted import counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime

    from chain_verifier.findings import Finding
    from chain_verifier.picture import Picture, Tile
    from chain_verifier.report import Report

_WIDTH: Final = 900
_LEFT: Final = 96
"""Room for the numbers beside an axis."""
_RIGHT: Final = 12
_IDS_HEIGHT: Final = 240
_SIZES_HEIGHT: Final = 120
_BELOW: Final = 22
"""Room for the times below an axis."""
_LABEL_WIDTH: Final = 70
"""Of an epoch's number."""
_STRIP_HEIGHT: Final = 26
_MARKS_MAX: Final = 500
"""More marks than this are one red line anyway."""


class _Scale(Struct, frozen=True):
    """A straight line from values to pixels; one value alone stands in the middle."""

    low: float
    high: float
    first: float
    last: float

    def at(self, value: float) -> float:
        if self.high <= self.low:
            return round((self.first + self.last) / 2, 1)
        share = min(1.0, max(0.0, (value - self.low) / (self.high - self.low)))
        return round(self.first + share * (self.last - self.first), 1)


def chain_chart(picture: Picture) -> str:
    """Return ids over time with epochs and filled gaps, and below it the sizes of batches.

    Empty for a chain without batches.
    """
    if not picture.tiles:
        return ""
    tiles = picture.tiles
    times = _Scale(
        min(tile.began_at for tile in tiles).timestamp(),
        max(tile.ended_at for tile in tiles).timestamp(),
        _LEFT,
        _WIDTH - _RIGHT,
    )
    height = _IDS_HEIGHT + _SIZES_HEIGHT + 2 * _BELOW
    return "".join(
        [
            _opening(height, "ids over time, and the rows of batches over time"),
            *_epochs(tiles, times),
            *_ids(picture, times),
            *_sizes(tiles, times),
            "</svg>",
        ]
    )


def findings_strip(report: Report) -> str:
    """Return one bar a source, from its first id to its last, with a mark at each finding."""
    sources = [source for source in report.sources if source.first_id is not None]
    ids = [id_ for one in sources for id_ in (one.first_id, one.last_id) if id_ is not None]
    if not ids:
        return ""
    scale = _Scale(min(report.start, *ids), max(report.head or 0, *ids), 8, _WIDTH - 8)
    drawn = [_opening(len(sources) * _STRIP_HEIGHT + _BELOW, "where the findings lie")]
    for number, source in enumerate(sources):
        top = number * _STRIP_HEIGHT + 6
        left, right = scale.at(source.first_id or 0), scale.at(source.last_id or 0)
        drawn.append(
            f'<rect class="bar" x="{left}" y="{top}" width="{max(1, right - left):.1f}" '
            f'height="14"><title>{escape(source.source)}</title></rect>'
        )
        own = [one for one in report.findings if one.source == source.source][:_MARKS_MAX]
        drawn += [_mark(one, scale, top) for one in own]
    below = len(sources) * _STRIP_HEIGHT + 16
    drawn.append(_text(8, below, f"id {scale.low:.0f}", "start"))
    drawn.append(_text(_WIDTH - 8, below, f"id {scale.high:.0f}", "end"))
    return "".join([*drawn, "</svg>"])


def _mark(finding: Finding, scale: _Scale, top: int) -> str:
    places = (finding.id, finding.until_id, finding.pid)
    at = next((place for place in places if place is not None), None)
    if at is None:
        return ""
    return (
        f'<rect class="fault" x="{scale.at(at) - 1:.1f}" y="{top - 3}" width="2" height="20">'
        f"<title>{escape(finding.text)}</title></rect>"
    )


def _opening(height: int, told: str) -> str:
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{escape(told)}" '
        'xmlns="http://www.w3.org/2000/svg">'
    )


def _epochs(tiles: Sequence[Tile], times: _Scale) -> Iterator[str]:
    """Yield a band for each epoch, every other one shaded, with its number where it fits."""
    bands: list[tuple[int, float, float]] = []
    for tile in tiles:
        began, ended = times.at(tile.began_at.timestamp()), times.at(tile.ended_at.timestamp())
        if bands and bands[-1][0] == tile.epoch:
            bands[-1] = (tile.epoch, bands[-1][1], ended)
        else:
            bands.append((tile.epoch, began, ended))
    label_from = 0.0
    for number, (epoch, left, right) in enumerate(bands):
        kind = "band" if number % 2 else "band odd"
        yield (
            f'<rect class="{kind}" x="{left}" y="0" width="{max(1, right - left):.1f}" '
            f'height="{_IDS_HEIGHT}"><title>epoch {epoch}</title></rect>'
        )
        # At the right edge a label stands before the end, not behind the beginning.
        label_at = min(left, times.last - _LABEL_WIDTH)
        if label_at >= label_from:
            yield _text(label_at + 3, 12, f"epoch {epoch}", "start")
            label_from = label_at + _LABEL_WIDTH


def _ids(picture: Picture, times: _Scale) -> Iterator[str]:
    tiles = picture.tiles
    ids = _Scale(tiles[0].first_id, tiles[-1].last_id, _IDS_HEIGHT - 4, 18)
    points = []
    for tile in tiles:
        points.append(f"{times.at(tile.began_at.timestamp())},{ids.at(tile.first_id)}")
        points.append(f"{times.at(tile.ended_at.timestamp())},{ids.at(tile.last_id)}")
    yield f'<polyline class="ids" points="{" ".join(points)}"/>'
    for gap in picture.gaps:
        top, bottom = ids.at(gap.until_id), ids.at(gap.after_id)
        at = times.at(gap.found_at.timestamp())
        told = f"{gap.receiver}: {gap.cause}, ({gap.after_id}, {gap.until_id}], {gap.outcome}"
        yield (
            f'<rect class="gap" x="{at - 2:.1f}" y="{top - 2:.1f}" width="4" '
            f'height="{bottom - top + 4:.1f}"><title>{escape(told)}</title></rect>'
        )
    yield from _axis(0, _IDS_HEIGHT, f"{tiles[0].first_id}", f"{tiles[-1].last_id}", "id")
    yield from _times(tiles, _IDS_HEIGHT + 15)


def _sizes(tiles: Sequence[Tile], times: _Scale) -> Iterator[str]:
    top = _IDS_HEIGHT + _BELOW
    bottom = top + _SIZES_HEIGHT
    most = max(tile.rows_max for tile in tiles)
    sizes = _Scale(0, most, bottom, top + 8)
    for tile in tiles:
        left, right = times.at(tile.began_at.timestamp()), times.at(tile.ended_at.timestamp())
        mean = tile.rows / tile.batches
        told = (
            f"{counted(tile.batches, 'batch')}, rows of each: {mean:.0f}, at most {tile.rows_max}"
        )
        for kind, value in (("most", float(tile.rows_max)), ("mean", mean)):
            at = sizes.at(value)
            yield (
                f'<rect class="{kind}" x="{left}" y="{at}" width="{max(1.5, right - left):.1f}" '
                f'height="{bottom - at:.1f}"><title>{told}</title></rect>'
            )
    yield from _axis(top, bottom, "0", str(most), "rows")
    yield from _times(tiles, bottom + 15)


def _axis(top: int, bottom: int, low: str, high: str, what: str) -> Iterator[str]:
    yield f'<line class="axis" x1="{_LEFT}" y1="{top}" x2="{_LEFT}" y2="{bottom}"/>'
    yield f'<line class="axis" x1="{_LEFT}" y1="{bottom}" x2="{_WIDTH - _RIGHT}" y2="{bottom}"/>'
    yield _text(_LEFT - 6, bottom - 1, low, "end")
    yield _text(_LEFT - 6, top + 18, high, "end")
    yield _text(_LEFT - 6, (top + bottom) // 2, what, "end")


def _times(tiles: Sequence[Tile], below: int) -> Iterator[str]:
    yield _text(_LEFT, below, _time_of(min(tile.began_at for tile in tiles)), "start")
    yield _text(_WIDTH - _RIGHT, below, _time_of(max(tile.ended_at for tile in tiles)), "end")


def _time_of(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S}"


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}">{escape(text)}</text>'
