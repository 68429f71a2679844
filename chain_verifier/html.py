"""The report for people: one page of HTML that needs nothing besides itself, and runs no script.

Everything that comes from a source (names, columns, texts) is escaped. The content security policy
of the page also forbids it to load or run anything.
"""

from __future__ import annotations

from datetime import datetime
from html import escape
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from chain_verifier.report import Verdict
from orderchain.text import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from chain_verifier.findings import Finding
    from chain_verifier.report import ChainsReport, Report


TILES_MAX = 300
"""Maximum number of points per picture: about one per three pixels of its width, for any chain."""

GAPS_MAX = 200
"""Maximum number of gaps that are drawn, the latest ones."""


class Tile(Struct, frozen=True, kw_only=True):
    """Neighbouring batches of one epoch, drawn as one point."""

    first_id: int
    last_id: int
    began_at: datetime
    """When the first of them was committed."""
    ended_at: datetime
    """When the last of them was."""
    batches: int
    rows: int
    rows_max: int
    """Rows of the largest of them."""
    epoch: int


class FilledGap(Struct, frozen=True, kw_only=True):
    """What one receiver read from the database, since it did not arrive by Kafka."""

    receiver: str
    after_id: int
    until_id: int
    cause: str
    outcome: str
    found_at: datetime


class Picture(Struct, frozen=True, kw_only=True):
    """One chain as its database shows it."""

    tiles: tuple[Tile, ...] = ()
    """In the order of ids."""
    gaps: tuple[FilledGap, ...] = ()


_WIDTH: Final = 900
_LEFT: Final = 96
"""Room for the numbers beside an axis."""
_RIGHT: Final = 12
_IDS_HEIGHT: Final = 240
_SIZES_HEIGHT: Final = 120
_BELOW: Final = 22
"""Room for the times below an axis."""
_LABEL_WIDTH: Final = 70
"""The width of an epoch's number."""
_STRIP_HEIGHT: Final = 26
_MARKS_MAX: Final = 500
"""More marks than this are one red line anyway."""


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
    """Return one bar per source, from its first id to its last, with a mark at each finding."""
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


def _opening(height: int, label: str) -> str:
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{escape(label)}" '
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
        # At the right edge, a label is placed before the end, not after the beginning.
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
        label = f"{gap.receiver}: {gap.cause}, ({gap.after_id}, {gap.until_id}], {gap.outcome}"
        yield (
            f'<rect class="gap" x="{at - 2:.1f}" y="{top - 2:.1f}" width="4" '
            f'height="{bottom - top + 4:.1f}"><title>{escape(label)}</title></rect>'
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
        label = (
            f"{counted(tile.batches, 'batch')}, rows of each: {mean:.0f}, at most {tile.rows_max}"
        )
        for kind, value in (("most", float(tile.rows_max)), ("mean", mean)):
            at = sizes.at(value)
            yield (
                f'<rect class="{kind}" x="{left}" y="{at}" width="{max(1.5, right - left):.1f}" '
                f'height="{bottom - at:.1f}"><title>{label}</title></rect>'
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

_SHOWN_MAX: Final = 1_000
"""Maximum number of findings in the table: nobody reads more, and the JSON report holds more."""

_STYLE: Final = """
:root { color-scheme: light dark; --ink: #1c2733; --soft: #5b6875; --line: #ccd4db; --back: #fff;
  --good: #17703c; --bad: #b3261e; --warn: #8a5a00; --one: #1f6fb2; --two: #9cc4e4;
  --odd: #eef2f5; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6ebf0; --soft: #9aa7b3; --line: #3a4651;
  --back: #12181e; --good: #6fd29a; --bad: #ff8a80; --warn: #e8b85c; --one: #6db3ea;
  --two: #2f567a; --odd: #1b242c; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--back);
  max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.1rem; margin: 0; color: var(--soft); font-weight: 500; }
h2 { font-size: 1.05rem; margin: 2rem 0 .5rem; }
.verdict { font-size: 1.9rem; font-weight: 700; margin: .2rem 0; }
.good { color: var(--good); } .bad { color: var(--bad); } .warn { color: var(--warn); }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .3rem .6rem .3rem 0; border-bottom: 1px solid var(--line);
  vertical-align: top; overflow-wrap: anywhere; }
th { color: var(--soft); font-weight: 500; } td.n, th.n { text-align: right; }
.note { color: var(--soft); }
svg { width: 100%; height: auto; display: block; }
svg text { font: 11px system-ui, sans-serif; fill: var(--soft); }
.axis { stroke: var(--line); } .ids { fill: none; stroke: var(--one); stroke-width: 2; }
.band { fill: transparent; } .band.odd { fill: var(--odd); }
.most { fill: var(--two); } .mean, .bar { fill: var(--one); }
.gap { fill: var(--warn); } .fault { fill: var(--bad); }
section { border-top: 3px solid var(--line); margin-top: 2.5rem; padding-top: 1rem; }
.key { display: inline-block; width: .8em; height: .8em; margin: 0 .3em 0 1em; }
.key.k1 { background: var(--one); } .key.k2 { background: var(--two); }
.key.k3 { background: var(--warn); }
"""


def html_report(report: Report, picture: Picture | None, made_at: datetime) -> str:
    """Return the page; `picture` is None without a database that shows batches and epochs."""
    title = f"Chain {report.chain_id}: {report.verdict}"
    return _page(title, [*_verdict(report, made_at), *_body(report, picture)])


def html_chains_report(
    chains: ChainsReport, pictures: Mapping[int, Picture | None], made_at: datetime
) -> str:
    """Return one page for several chains: the verdict of each, then everything of each."""
    body = [*_verdicts(chains, made_at)]
    for report in chains.reports:
        body.append(f'<section id="chain-{report.chain_id}">')
        body += [*_verdict(report, made_at), *_body(report, pictures.get(report.chain_id))]
        body.append("</section>")
    clean = sum(report.is_clean for report in chains.reports)
    return _page(f"{clean} of {counted(len(chains.outcomes), 'chain')} clean", body)


def _body(report: Report, picture: Picture | None) -> Iterable[str]:
    yield from _findings(report)
    yield from _chain(report, picture)
    yield from _sources(report)
    yield from _durations(report)


def _page(title: str, body: Iterable[str]) -> str:
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n"
        f"<style>{_STYLE}</style></head>\n<body>\n" + "\n".join(body) + "\n</body></html>\n"
    )


def _verdicts(chains: ChainsReport, made_at: datetime) -> Iterable[str]:
    """Yield the verdict of each chain, worst first, in one table."""
    clean = sum(report.is_clean for report in chains.reports)
    tone = "good" if chains.is_clean else "bad"
    yield "<h1>Verification of several chains</h1>"
    yield f'<p class="verdict {tone}">{clean} of {len(chains.outcomes)} clean</p>'
    yield f'<p class="note">Made {made_at:%Y-%m-%d %H:%M:%S %Z} in {chains.seconds:.1f} s.</p>'
    rows = [(str(one.chain_id), "not verified", "", one.reason) for one in chains.unverified]
    for report in sorted(chains.reports, key=lambda report: report.is_clean):
        counted = ", ".join(f"{count} {kind}" for kind, count in sorted(report.counts.items()))
        head = "not known" if report.head is None else str(report.head)
        rows.append((str(report.chain_id), report.verdict.value, head, counted or "none"))
    yield _table(("Chain", "Verdict", "Head", "Findings"), rows, numbers=(0, 2))


def _verdict(report: Report, made_at: datetime) -> Iterable[str]:
    tone = {Verdict.COMPLETE: "good", Verdict.CONTIGUOUS: "warn"}.get(report.verdict, "bad")
    head = "not known" if report.head is None else str(report.head)
    yield f"<h1>Verification of chain {report.chain_id}</h1>"
    yield f'<p class="verdict {tone}">{escape(report.verdict)}</p>'
    yield f"<p>{escape(_SENTENCES[report.verdict])}</p>"
    yield (
        f'<p class="note">From {report.start} to the head {head}; '
        f"keys {'' if report.keys_compared else 'not '}compared; "
        f"made {made_at:%Y-%m-%d %H:%M:%S %Z} in {report.seconds:.1f} s.</p>"
    )


def _findings(report: Report) -> Iterable[str]:
    total = sum(report.counts.values())
    yield f"<h2>Findings: {total}</h2>"
    if not total:
        yield "<p>None.</p>"
        return
    counted = ", ".join(f"{count} {kind}" for kind, count in sorted(report.counts.items()))
    yield f'<p class="note">{escape(counted)}</p>'
    rows = [(one.kind, one.source, one.text) for one in report.findings[:_SHOWN_MAX]]
    yield _table(("Kind", "Source", "What"), rows)
    if total > len(rows):
        yield f'<p class="note">{total - len(rows)} more, not shown here.</p>'


def _chain(report: Report, picture: Picture | None) -> Iterable[str]:
    yield "<h2>The chain</h2>"
    drawn = "" if picture is None else chain_chart(picture)
    if picture is not None and drawn:
        batches = sum(tile.batches for tile in picture.tiles)
        yield drawn
        yield (
            '<p class="note"><span class="key k1"></span>ids, and mean rows of a batch'
            '<span class="key k2"></span>largest batch'
            f'<span class="key k3"></span>{counted(len(picture.gaps), "gap")} filled by '
            f"receivers; shaded: epochs; {counted(batches, 'batch')}</p>"
        )
    strip = findings_strip(report)
    if strip:
        yield strip
        yield '<p class="note">Ids of each source; findings in red.</p>'
    if not drawn and not strip:
        yield "<p>No rows.</p>"


def _sources(report: Report) -> Iterable[str]:
    yield "<h2>Sources</h2>"
    rows = [
        (
            one.source,
            one.verdict,
            str(one.rows),
            "" if one.first_id is None else f"{one.first_id} to {one.last_id}",
            "; ".join(one.notes),
        )
        for one in report.sources
    ]
    yield _table(("Source", "Verdict", "Rows", "Ids", "Notes"), rows, numbers=(2,))
    if report.comparisons:
        yield "<h2>Compared</h2>"
        compared = [
            (
                one.source,
                one.against,
                ", ".join(f"{count} {kind}" for kind, count in one.counts.items()) or "equal",
            )
            for one in report.comparisons
        ]
        yield _table(("Source", "Against", "Outcome"), compared)


def _durations(report: Report) -> Iterable[str]:
    yield "<h2>How long it took</h2>"
    took = [(f"checking {one.source}", one.seconds) for one in report.sources]
    took += [(f"comparing {c.source} with {c.against}", c.seconds) for c in report.comparisons]
    if report.spark_start_seconds:
        took.insert(0, ("starting Spark", report.spark_start_seconds))
    took.append(("in all", report.seconds))
    rows = [(what, f"{seconds:.2f}") for what, seconds in took]
    yield _table(("What", "Seconds"), rows, numbers=(1,))


def _table(names: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[int] = ()) -> str:
    def cells(tag: str, values: Sequence[str]) -> str:
        kinds = [' class="n"' if index in numbers else "" for index in range(len(values))]
        pairs = zip(kinds, values, strict=True)
        return "".join(f"<{tag}{kind}>{escape(value)}</{tag}>" for kind, value in pairs)

    body = "\n".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return f"<table><thead><tr>{cells('th', names)}</tr></thead>\n<tbody>{body}</tbody></table>"
