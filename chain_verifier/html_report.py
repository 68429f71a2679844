"""The report for people: one page of HTML that needs nothing beside itself, and runs no script.

Whatever comes from a source (names, columns, texts) is escaped; the page also forbids itself, by
its content security policy, to load or run anything.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Final

from chain_verifier.html_chart import chain_chart, findings_strip
from chain_verifier.report import Verdict
from orderchain.counted import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime

    from chain_verifier.chains_report import ChainsReport
    from chain_verifier.picture import Picture
    from chain_verifier.report import Report

_SENTENCES: Final = {
    Verdict.COMPLETE: "Every row from start to head is there, once, and linked to the next.",
    Verdict.CONTIGUOUS: (
        "The rows are linked without a gap; where they should end nobody but they could tell."
    ),
    Verdict.UNPROVEN: (
        "A source held nothing by which its chain could be proven: no row and no known head, or a "
        "topic without a frame of it. Is it the right source?"
    ),
    Verdict.BROKEN: "There are findings: see the table below.",
}

_SHOWN_MAX: Final = 1_000
"""Most findings in the table: nobody reads more, and the JSON report has them all."""

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
    """Return the page; `picture` is None where no database could tell of batches and epochs."""
    title = f"Chain {report.chain_id}: {report.verdict}"
    return _page(title, [*_verdict(report, made_at), *_body(report, picture)])


def html_chains_report(
    chains: ChainsReport, pictures: Mapping[int, Picture | None], made_at: datetime
) -> str:
    """Return one page for several chains: what is each's verdict, then all of each."""
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
