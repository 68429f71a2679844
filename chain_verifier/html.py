"""The report for people: one page of HTML that needs nothing besides itself, and runs no script.

Everything that comes from a source (names, columns, texts) is escaped. The content security policy
of the page also forbids it to load or run anything.
"""

from __future__ import annotations

import re
from datetime import datetime
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from chain_kernel.text import counted
from chain_verifier.findings import KINDS_OF_BATCHES, Kind
from chain_verifier.report import Verdict

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


class ChartData(Struct, frozen=True, kw_only=True):
    """One chain as its database shows it."""

    tiles: tuple[Tile, ...] = ()
    """In the order of ids."""
    gaps: tuple[FilledGap, ...] = ()


class Origin(Struct, frozen=True, kw_only=True):
    """How a page came about, so that it can be filed, and made once more."""

    made_at: datetime
    command: str
    """The command line, without passwords."""
    version: str


_WIDTH: Final = 900
"""Pictures are drawn this wide, and stretched to the width of the page; texts are beside them."""

_IDS_HEIGHT: Final = 240
_SIZES_HEIGHT: Final = 120
_STRIP_HEIGHT: Final = 20
_LABEL_SHARE: Final = 18.0
"""Percent of the width that the number of an epoch takes on a telephone."""

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


def chain_chart(chart_data: ChartData) -> str:
    """Return ids over time with epochs and filled gaps, and below it the sizes of batches.

    Empty for a chain without batches.
    """
    if not chart_data.tiles:
        return ""
    tiles = chart_data.tiles
    times = _Scale(
        min(tile.began_at for tile in tiles).timestamp(),
        max(tile.ended_at for tile in tiles).timestamp(),
        0,
        _WIDTH,
    )
    bands = _epochs(tiles, times)
    drawn = [*_bands(bands), *_ids(chart_data, times)]
    most = max(tile.rows_max for tile in tiles)
    span = f"from {tiles[0].first_id:,} to {tiles[-1].last_id:,}"
    ends = _ends(
        _time_of(min(tile.began_at for tile in tiles)),
        _time_of(max(tile.ended_at for tile in tiles)),
    )
    return "".join(
        [
            f"<figure><figcaption>Ids over time, {span}</figcaption>{_labels(bands)}",
            f"{_svg('plot', 'ids over time', _IDS_HEIGHT, drawn)}{ends}</figure>",
            "<figure><figcaption>Rows per batch over time, "
            f"at most {counted(most, 'row')}</figcaption>",
            _svg("plot", "rows per batch over time", _SIZES_HEIGHT, _sizes(tiles, times, most)),
            f"{ends}</figure>",
        ]
    )


def findings_strip(report: Report) -> str:
    """Return one bar per source, from its first id to its last, with a mark at each finding."""
    ids = [id_ for one in report.sources for id_ in (one.first_id, one.last_id) if id_ is not None]
    if not ids and not report.head:
        return ""
    scale = _Scale(min([report.start, *ids]), max([report.head or 0, *ids]), 0, _WIDTH)
    drawn = ["<figure><figcaption>Ids of each source, findings in red</figcaption>"]
    for source in report.sources:
        bar = [_rect("track", 0, 3, _WIDTH, 14)]
        if source.first_id is not None and source.last_id is not None:
            left, right = scale.at(source.first_id), scale.at(source.last_id)
            bar.append(_rect("bar", left, 3, max(1, right - left), 14, source.source))
        own = [one for one in report.findings if one.source == source.source][:_MARKS_MAX]
        bar += [_mark(one, scale) for one in own]
        drawn.append(f'<p class="name">{_breakable(source.source)}</p>')
        drawn.append(_svg("", f"ids and findings of {source.source}", _STRIP_HEIGHT, bar))
    drawn.append(_ends(f"id {scale.low:,.0f}", f"id {scale.high:,.0f}"))
    return "".join([*drawn, "</figure>"])


def _mark(finding: Finding, scale: _Scale) -> str:
    """Return a mark from the first row that a finding names to the last.

    A contradicted mark says of no row that it is the changed one: only its end is drawn, or it
    would cover all that was found.
    """
    is_mark = finding.kind is Kind.CONTRADICTED_MARK
    after_id = None if is_mark else finding.after_id
    places = (after_id, finding.id, finding.until_id, finding.pid)
    first = next((place for place in places if place is not None), None)
    if first is None:
        return ""
    ends = (finding.last_id, finding.until_id)
    last = next((end for end in ends if end is not None and end >= first), first)
    left = scale.at(first)
    # Without a width it would not be drawn at all; its border makes it wide enough to be seen.
    width = max(0.1, scale.at(last) - left)
    return _rect("fault", left, 0, width, _STRIP_HEIGHT, _sentence(finding))


def _svg(kind: str, label: str, height: int, drawn: Iterable[str]) -> str:
    return (
        f'<svg class="{kind}" viewBox="0 0 {_WIDTH} {height}" height="{height}" '
        f'preserveAspectRatio="none" role="img" aria-label="{escape(label)}" xmlns="http://www.w3.org/2000/svg">'
        f"{''.join(drawn)}</svg>"
    )


def _rect(kind: str, x: float, y: float, width: float, height: float, label: str = "") -> str:
    title = f"<title>{escape(label)}</title>" if label else ""
    return (
        f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" '
        f'height="{height:.1f}">{title}</rect>'
    )


_Bands = list[tuple[int, float, float]]
"""Epochs, each with where it begins and ends."""


def _epochs(tiles: Sequence[Tile], times: _Scale) -> _Bands:
    bands: _Bands = []
    for tile in tiles:
        began, ended = times.at(tile.began_at.timestamp()), times.at(tile.ended_at.timestamp())
        if bands and bands[-1][0] == tile.epoch:
            bands[-1] = (tile.epoch, bands[-1][1], ended)
        else:
            bands.append((tile.epoch, began, ended))
    return bands


def _bands(bands: _Bands) -> Iterator[str]:
    """Yield a band for each epoch, every other one shaded."""
    for number, (epoch, left, right) in enumerate(bands):
        kind = "band" if number % 2 else "band odd"
        yield _rect(kind, left, 0, max(1, right - left), _IDS_HEIGHT, f"epoch {epoch:,}")


def _labels(bands: _Bands) -> str:
    """Return the numbers of the epochs where they fit; one at the edge ends with the picture."""
    labels = []
    label_from = 0.0
    for epoch, left, _ in bands:
        at = 100 * left / _WIDTH
        if min(at, 100 - _LABEL_SHARE) >= label_from:
            place = f"left: {at:.1f}%" if at <= 100 - _LABEL_SHARE else "right: 0"
            labels.append(f'<span style="{place}">epoch {epoch:,}</span>')
            label_from = at + _LABEL_SHARE
    return f'<div class="epochs">{"".join(labels)}</div>'


def _ids(chart_data: ChartData, times: _Scale) -> Iterator[str]:
    tiles = chart_data.tiles
    ids = _Scale(tiles[0].first_id, tiles[-1].last_id, _IDS_HEIGHT - 4, 4)
    points = []
    for tile in tiles:
        points.append(f"{times.at(tile.began_at.timestamp())},{ids.at(tile.first_id)}")
        points.append(f"{times.at(tile.ended_at.timestamp())},{ids.at(tile.last_id)}")
    yield f'<polyline class="ids" points="{" ".join(points)}"/>'
    for gap in chart_data.gaps:
        top, bottom = ids.at(gap.until_id), ids.at(gap.after_id)
        at = times.at(gap.found_at.timestamp())
        span = f"after {gap.after_id:,} up to {gap.until_id:,}"
        label = f"{gap.receiver}: {gap.cause}, {span}, {gap.outcome}"
        yield _rect("gap", at - 2, top - 2, 4, bottom - top + 4, label)


def _sizes(tiles: Sequence[Tile], times: _Scale, most: int) -> Iterator[str]:
    sizes = _Scale(0, most, _SIZES_HEIGHT, 4)
    for tile in tiles:
        left, right = times.at(tile.began_at.timestamp()), times.at(tile.ended_at.timestamp())
        mean = tile.rows / tile.batches
        batches = counted(tile.batches, "batch")
        label = f"{batches}, rows of each: {mean:,.0f}, at most {tile.rows_max:,}"
        for kind, value in (("most", float(tile.rows_max)), ("mean", mean)):
            at = sizes.at(value)
            yield _rect(kind, left, at, max(2.5, right - left), _SIZES_HEIGHT - at, label)


def _ends(first: str, last: str) -> str:
    return f'<div class="ends"><span>{escape(first)}</span><span>{escape(last)}</span></div>'


def _time_of(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S %Z}"


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

_STYLE: Final = (files("chain_verifier") / "report.css").read_text(encoding="utf-8")


def html_report(report: Report, chart_data: ChartData | None, origin: Origin) -> str:
    """Return the page; `chart_data` is None without a database that shows batches and epochs."""
    title = f"Chain {report.chain_id}: {report.verdict}"
    body = [*_verdict(report), _facts([*_facts_of(report), *_facts_of_origin(origin)])]
    return _page(title, [*body, *_body(report, chart_data)], is_clean=report.is_clean)


def html_chains_report(
    chains: ChainsReport, pictures: Mapping[int, ChartData | None], origin: Origin
) -> str:
    """Return one page for several chains: the verdict of each, then everything of each."""
    body = [*_verdicts(chains, origin)]
    for report in chains.reports:
        body.append(f'<section id="chain-{report.chain_id}">')
        body += [*_verdict(report), _facts(_facts_of(report))]
        body += [*_body(report, pictures.get(report.chain_id)), "</section>"]
    clean = sum(report.is_clean for report in chains.reports)
    title = f"{clean} of {counted(len(chains.outcomes), 'chain')} clean"
    return _page(title, body, is_clean=chains.is_clean)


def _body(report: Report, chart_data: ChartData | None) -> Iterable[str]:
    yield from _findings(report)
    yield from _chain(report, chart_data)
    yield from _sources(report)
    yield from _durations(report)


def _page(title: str, body: Iterable[str], *, is_clean: bool) -> str:
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n"
        f'<meta name="orderchain-clean" content="{"yes" if is_clean else "no"}">\n'
        f"<style>{_STYLE}</style></head>\n<body>\n" + "\n".join(body) + "\n</body></html>\n"
    )


def _verdicts(chains: ChainsReport, origin: Origin) -> Iterable[str]:
    """Yield the verdict of each chain, worst first, in one table."""
    clean = sum(report.is_clean for report in chains.reports)
    is_broken = any(not report.is_clean for report in chains.reports)
    tone = "good" if chains.is_clean else "bad" if is_broken else "warn"
    yield "<h1>Verification of several chains</h1>"
    all_chains = counted(len(chains.outcomes), "chain")
    yield f'<p class="verdict {tone}">{clean:,} of {all_chains} clean</p>'
    yield _facts([*_facts_of_origin(origin), ("Took", f"{chains.seconds:,.1f} s")])
    rows = [(str(one.chain_id), "not verified", "", one.reason) for one in chains.unverified]
    for report in sorted(chains.reports, key=lambda report: report.is_clean):
        found = _by_kind(report.counts, report.row_counts) or "none"
        rows.append((str(report.chain_id), report.verdict.value, _head_of(report), found))
    yield _table({"Chain": "n", "Verdict": "", "Head": "n", "Findings": "w"}, rows)


def _verdict(report: Report) -> Iterable[str]:
    tone = {Verdict.COMPLETE: "good", Verdict.CONTIGUOUS: "warn"}.get(report.verdict, "bad")
    yield f"<h1>Verification of chain {report.chain_id}</h1>"
    yield f'<p class="verdict {tone}">{escape(report.verdict)}</p>'
    yield f"<p>{escape(_SENTENCES[report.verdict])}</p>"


def _facts_of(report: Report) -> list[tuple[str, str]]:
    facts = []
    if report.database_id is not None and report.head_seal is not None:
        kind = "recomputed from the rows" if report.seals_checked else "as the database states it"
        facts = [("Database", _code(report.database_id)), ("Head", _head_of(report))]
        facts.append(("Seal at the head", f"{_code(report.head_seal)} ({kind})"))
    else:
        facts = [("Head", _head_of(report))]
    if report.exported_seals is not None:
        facts.append(("Exported seals", escape(str(report.exported_seals))))
    keys = "compared" if report.keys_compared else "not compared"
    took = f"{report.seconds:,.1f} s"
    start = f"after row {report.start:,}" if report.start else "from the first row"
    return [*facts, ("Looked at", f"{start} up to the head"), ("Keys", keys), ("Took", took)]


def _facts_of_origin(origin: Origin) -> list[tuple[str, str]]:
    return [
        ("Made", f"{origin.made_at:%Y-%m-%d %H:%M:%S %Z}"),
        ("Command", _command(origin.command)),
        ("Version", escape(f"orderchain {origin.version}")),
    ]


def _facts(facts: Iterable[tuple[str, str]]) -> str:
    """Return names with their values, which are HTML."""
    return f"<dl>{''.join(f'<dt>{name}</dt><dd>{value}</dd>' for name, value in facts)}</dl>"


def _code(text: str) -> str:
    """Return what is copied: it may break between its parts, and a seal after each eight digits."""
    parts = re.findall(r".{1,8}", text) if re.fullmatch("[0-9a-f]{64}", text) else [text]
    return f"<code>{'<wbr>'.join(map(_breakable, parts))}</code>"


def _command(line: str) -> str:
    """Return a command line in which no option is broken."""
    words = (
        f'<span class="s">{escape(word)}</span>' if word.startswith("-") else _breakable(word)
        for word in line.split(" ")
    )
    return f"<code>{' '.join(words)}</code>"


def _head_of(report: Report) -> str:
    return "not known" if report.head is None else f"{report.head:,}"


def _breakable(text: str) -> str:
    """Return `text` as HTML in which a path may break between its parts, and no word elsewhere."""
    return re.sub(r"([/:]+)(?=\S)", r"\1<wbr>", escape(text, quote=False))


def _sentence(finding: Finding) -> str:
    text = finding.text_with("{:,}".format)
    return f"{text[0].upper()}{text[1:]}."


def _by_kind(counts: Mapping[str, int], row_counts: Mapping[str, int]) -> str:
    """Return how many findings there are of each kind; of how many rows or batches, if these are
    more.
    """
    found = []
    for kind, count in sorted(counts.items()):
        singles = row_counts.get(kind, count)
        unit = "batch" if kind in KINDS_OF_BATCHES else "row"
        found.append(
            f"{count:,} {kind}" + (f" ({counted(singles, unit)})" if singles > count else "")
        )
    return ", ".join(found)


def _findings(report: Report) -> Iterable[str]:
    total = sum(report.counts.values())
    yield f"<h2>Findings: {total:,}</h2>"
    if not total:
        yield "<p>None.</p>"
        return
    yield f'<p class="note">{escape(_by_kind(report.counts, report.row_counts))}</p>'
    rows = [(one.kind, one.source, _sentence(one)) for one in report.findings[:_SHOWN_MAX]]
    yield _table({"Kind": "s", "Source": "p", "What": "w"}, rows)
    if total > len(rows):
        yield f'<p class="note">{total - len(rows):,} more, not shown here.</p>'


def _chain(report: Report, chart_data: ChartData | None) -> Iterable[str]:
    yield "<h2>The chain</h2>"
    drawn = "" if chart_data is None else chain_chart(chart_data)
    if chart_data is not None and drawn:
        batches = counted(sum(tile.batches for tile in chart_data.tiles), "batch")
        unfilled = sum(gap.outcome != "filled" for gap in chart_data.gaps)
        gaps = f"{counted(len(chart_data.gaps), 'gap')} that receivers met"
        gaps += f", {unfilled:,} not filled" if unfilled else ""
        names = (f"ids; mean rows of {batches}", "rows of the largest batch", gaps, "epochs")
        keys = (
            f'<span><i class="key k{number}"></i>{name}</span>'
            for number, name in enumerate(names, 1)
        )
        yield drawn
        yield f'<p class="note keys">{"".join(keys)}</p>'
    strip = findings_strip(report)
    yield strip
    if not drawn and not strip:
        yield "<p>No rows.</p>"


def _sources(report: Report) -> Iterable[str]:
    yield "<h2>Sources</h2>"
    rows = [
        (
            one.source,
            one.verdict,
            f"{one.rows:,}",
            "" if one.first_id is None else f"{one.first_id:,} to {one.last_id:,}",
            _grouped("; ".join(one.notes)),
        )
        for one in report.sources
    ]
    yield _table({"Source": "p", "Verdict": "", "Rows": "n", "Ids": "", "Notes": ""}, rows)
    if report.comparisons:
        yield "<h2>Compared</h2>"
        compared = [
            (one.source, one.against, _by_kind(one.counts, one.row_counts) or "equal")
            for one in report.comparisons
        ]
        yield _table({"Source": "p", "Against": "p", "Outcome": ""}, compared)


def _grouped(notes: str) -> str:
    """Return notes, which hold no names, with separators in their numbers."""
    return re.sub(r"\b\d{4,}\b", lambda number: f"{int(number[0]):,}", notes)


def _durations(report: Report) -> Iterable[str]:
    yield "<h2>How long it took</h2>"
    took = [(f"checking {one.source}", one.seconds) for one in report.sources]
    took += [(f"comparing {c.source} with {c.against}", c.seconds) for c in report.comparisons]
    if report.spark_start_seconds:
        took.insert(0, ("starting Spark", report.spark_start_seconds))
    took.append(("in all", report.seconds))
    yield _table({"What": "w", "Seconds": "n"}, [(what, f"{each:,.2f}") for what, each in took])


def _table(columns: Mapping[str, str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; `columns` are names with a class: n number, s short, p path, w long words.

    A narrow page shows no head: there, each cell names its column.
    """

    def cell(name: str, kind: str, value: str) -> str:
        shown = f"<span>{_breakable(value)}</span>" if value else ""
        return f'<td class="{kind}" data-name="{name}">{shown}</td>'

    head = "".join(f'<th class="{kind}">{name}</th>' for name, kind in columns.items())
    body = "\n".join(
        "<tr>"
        + "".join(
            cell(name, kind, value)
            for (name, kind), value in zip(columns.items(), row, strict=True)
        )
        + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table>"
