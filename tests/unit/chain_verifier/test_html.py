"""The page for people: what it says, that it is complete, and that hostile text stays text."""

import re
from datetime import UTC, datetime
from html.parser import HTMLParser
from typing import Any

import pytest
from msgspec.structs import replace

from chain_verifier.findings import Finding, Kind
from chain_verifier.html import Origin, html_report
from chain_verifier.report import (
    ChainsReport,
    Comparison,
    Report,
    SourceReport,
    Unverified,
    Verdict,
)

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
MADE = Origin(
    made_at=NOW, command="chainctl verify --chain 7 --source database --report page.html",
    version="1.2.3",
)  # fmt: skip
HOSTILE = "journal:</title><script>alert(1)</script><img src=x onerror='a' title=\"b\">&"

SOURCE = SourceReport(
    source="database", verdict=Verdict.COMPLETE, rows=90, first_id=3, last_id=400, counts={},
    row_counts={}, notes=(), seconds=1.5,
)  # fmt: skip
CLEAN = Report(
    chain_id=7, verdict=Verdict.COMPLETE, start=0, head=400, sources=(SOURCE,), comparisons=(),
    counts={}, row_counts={}, findings=(), spark_start_seconds=2.0, seconds=4.0,
)  # fmt: skip


class _Page(HTMLParser):
    """What a browser would make of a page: its tags with their attributes, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "br", "wbr"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def broken() -> Report:
    gap = Finding(kind=Kind.GAP, source=HOSTILE, after_id=30, until_id=40)
    other = Finding(kind=Kind.DIFFERING, source=HOSTILE, against=HOSTILE, id=8, columns=(HOSTILE,))
    source = replace(SOURCE, source=HOSTILE, notes=(HOSTILE,), verdict=Verdict.BROKEN)
    compared = Comparison(
        source=HOSTILE,
        against=HOSTILE,
        is_equal=False,
        counts={"differing": 1},
        row_counts={"differing": 1},
        seconds=0.5,
    )
    return replace(
        CLEAN, verdict=Verdict.BROKEN, sources=(source,), comparisons=(compared,),
        counts={"gap": 1, "differing": 1}, row_counts={"gap": 1, "differing": 1},
        findings=(gap, other),
    )  # fmt: skip


def page_of(report: Report | ChainsReport) -> _Page:
    page = _Page(html_report(report, MADE))
    assert page.open == []
    return page


LARGE = replace(
    CLEAN,
    verdict=Verdict.BROKEN,
    head=12_345_678,
    database_id="b2c1-77",
    head_seal="5f1d" * 16,
    sources=(
        replace(
            SOURCE, rows=1_234_567, last_id=7_654_321, notes=("rows after 1500 were left out",)
        ),
    ),
    findings=(
        Finding(
            kind=Kind.LACKING, source="topic", against="x", id=1_000, last_id=99_999, rows=2_000
        ),
    ),
    counts={"lacking": 1, "batch_count": 9_000},
    row_counts={"lacking": 2_000, "batch_count": 9_331},
)
EMPTY = replace(
    CLEAN,
    verdict=Verdict.CONTIGUOUS,
    head=None,
    sources=(replace(SOURCE, rows=0, first_id=None, last_id=None),),
)


@pytest.mark.parametrize(
    ("report", "shown"),
    [
        (CLEAN, ["None.", "Command" + MADE.command, "Versionorderchain 1.2.3",
                 "Made2026-05-01 12:00:00 UTC", "starting Spark"]),
        (broken(), ["Order 40 is missing, and no row is between 30 and it.", "Findings: 2"]),
        (LARGE, ["Databaseb2c1-77", "Head12,345,678", "5f1d (as the database states it)",
                 "2,000 rows from 1,000 to 99,999 are lacking, x has them.", "1,234,567",
                 "9,000 batch_count (9,331 batches), 1 lacking (2,000 rows)", "3 to 7,654,321",
                 "rows after 1,500 were left out", "9,000 more, not shown here"]),
        (replace(LARGE, seals_checked=True), ["5f1d (recomputed from the rows)"]),
        (EMPTY, ["Headnot known", "No rows."]),
    ],
    ids=["clean", "broken", "large", "with seals", "empty"],
)  # fmt: skip
def test_page_reports_what_a_report_holds(report: Report, shown: list[str]) -> None:
    page = page_of(report)
    assert [each for each in shown if each not in page.text] == []
    assert (
        page.text.index(report.verdict) < page.text.index("Findings") < page.text.index("Sources")
    )
    visible = re.sub(r"<[^>]*>", " ", html_report(report, MADE).partition("<body>")[2])
    assert not re.findall(r"\d{5,}", visible), "numbers have separators"


def test_page_draws_each_source_and_its_findings_in_their_places() -> None:
    """A contradicted mark does not cover what else was found."""
    wiped = replace(SOURCE, source="topic:orders", rows=0, first_id=None, last_id=None)
    found = (
        Finding(kind=Kind.LACKING, source="topic:orders", against="x", id=3, last_id=400, rows=90),
        Finding(kind=Kind.CONTRADICTED_MARK, source="database", after_id=0, until_id=400),
        Finding(kind=Kind.GAP, source="database", after_id=100, until_id=140),
    )
    page = page_of(replace(CLEAN, sources=(SOURCE, wiped), findings=found))
    drawn = [(a.get("class"), a.get("style")) for tag, a in page.tags if tag == "i"]
    assert drawn == [
        ("bar", "left:0.75%;width:99.25%"), ("fault", "left:100.00%;width:0.00%"),
        ("fault", "left:25.00%;width:10.00%"), ("fault", "left:0.75%;width:99.25%"),
    ]  # fmt: skip
    assert [a.get("class") for _, a in page.tags].count("track") == 2


def test_paths_break_between_their_parts_and_no_word_is_broken() -> None:
    path = "journal:/srv/orders/archive/of/a/long/name/journal.jsonl"
    text = html_report(replace(CLEAN, sources=(replace(SOURCE, source=path),)), MADE)
    assert "journal:/<wbr>srv/<wbr>orders/<wbr>" in text
    (cell,) = re.findall(r"<td[^>]*>[^/]*complete</span></td>", text)
    assert 'class=""' in cell
    assert 'data-name="Verdict"' in cell


def test_page_shows_hostile_text_makes_no_tag_of_it_and_needs_nothing_beside_itself() -> None:
    text = html_report(broken(), MADE)
    page = _Page(text)
    tags = {tag for tag, _ in page.tags}
    assert HOSTILE in page.text
    assert tags.isdisjoint({"script", "img", "link", "iframe", "a", "object", "image", "use"})
    outer = {"src", "href", "xlink:href", "action", "data", "srcset"}
    names = [name for _, attrs in page.tags for name in attrs]
    assert not [name for name in names if name in outer or name.startswith("on")]
    assert "url(" not in text
    assert "@import" not in text
    (policy,) = [a["content"] for t, a in page.tags if a.get("http-equiv")]
    assert policy == "default-src 'none'; style-src 'unsafe-inline'"


def test_page_of_several_chains_reports_each_verdict_first_and_then_all_of_each() -> None:
    gone = Unverified(chain_id=3, is_refused=False, reason=HOSTILE)
    chains = ChainsReport(
        outcomes=(CLEAN, replace(broken(), chain_id=8), gone), spark_start_seconds=0, seconds=3.0
    )
    page = page_of(chains)
    assert "1 of 3 chains clean" in page.text
    assert ("p", {"class": "verdict bad"}) in page.tags
    assert page.text.index(HOSTILE) < page.text.index("Verification of chain 7")
    assert "Verification of chain 8" in page.text
    assert {tag for tag, _ in page.tags}.isdisjoint({"script", "img"})
    partial = page_of(replace(chains, outcomes=(CLEAN, gone)))
    assert ("p", {"class": "verdict warn"}) in partial.tags  # nothing is wrong, as far as is known


@pytest.mark.parametrize("is_clean", [True, False])
def test_page_says_for_programs_whether_all_was_whole(is_clean: bool) -> None:
    verdict = Verdict.COMPLETE if is_clean else Verdict.BROKEN
    report = replace(CLEAN, verdict=verdict)
    chains = ChainsReport(outcomes=(CLEAN, report), spark_start_seconds=0, seconds=1.0)
    says = f'<meta name="orderchain-clean" content="{"yes" if is_clean else "no"}">'
    assert says in html_report(report, MADE)
    assert says in html_report(chains, MADE)
