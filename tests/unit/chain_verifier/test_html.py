"""The page for people: what it says, that it is complete, and that hostile text stays text."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from typing import Any

import pytest
from msgspec.structs import replace

from chain_verifier.chart_data import ChartData, FilledGap, Tile
from chain_verifier.findings import Finding, Kind
from chain_verifier.html import Origin, html_chains_report, html_report
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
PICTURE = ChartData(
    tiles=tuple(
        Tile(
            first_id=n * 10 + 1, last_id=n * 10 + 10, began_at=NOW + timedelta(seconds=n),
            ended_at=NOW + timedelta(seconds=n + 1), batches=2, rows=10, rows_max=7,
            epoch=1 + n // 20,
        )
        for n in range(40)
    ),
    gaps=(
        FilledGap(
            receiver=HOSTILE, after_id=50, until_id=90, cause="skipped", outcome="filled",
            found_at=NOW + timedelta(seconds=9),
        ),
    ),
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


def test_page_begins_with_the_verdict_and_reports_findings_and_durations() -> None:
    page = _Page(html_report(broken(), PICTURE, MADE))
    assert page.text.index("broken") < page.text.index("Findings: 2") < page.text.index("Sources")
    assert "Order 40 is missing, and no row is between 30 and it." in page.text
    assert "starting Spark" in page.text
    assert page.open == []


def test_page_can_be_filed_it_names_database_head_seal_command_and_version() -> None:
    seal = "5f1d" * 16
    report = replace(CLEAN, head=12_345_678, database_id="b2c1-77", head_seal=seal)
    text = _Page(html_report(report, PICTURE, MADE)).text
    assert "Databaseb2c1-77" in text
    assert "Head12,345,678" in text
    assert f"{seal} (as the database states it)" in text
    assert "Made2026-05-01 12:00:00 UTC" in text
    assert f"Command{MADE.command}" in text
    assert "Versionorderchain 1.2.3" in text
    checked = html_report(replace(report, seals_checked=True), PICTURE, MADE)
    assert f"{seal} (recomputed from the rows)" in _Page(checked).text


def test_page_writes_large_numbers_with_separators_and_findings_as_sentences() -> None:
    found = Finding(
        kind=Kind.LACKING, source="topic", against="database", id=1_000, last_id=99_999, rows=20_000
    )
    source = replace(
        SOURCE, rows=1_234_567, last_id=7_654_321, notes=("rows after 1500 were left out",)
    )
    report = replace(
        CLEAN, verdict=Verdict.BROKEN, sources=(source,), findings=(found,),
        counts={"lacking": 1, "batch_count": 1},
        row_counts={"lacking": 20_000, "batch_count": 331},
    )  # fmt: skip
    html = html_report(report, PICTURE, MADE)
    text = _Page(html).text
    assert "20,000 rows from 1,000 to 99,999 are lacking, database has them." in text
    assert "1 batch_count (331 batches), 1 lacking (20,000 rows)" in text
    for shown in ("1,234,567", "3 to 7,654,321", "rows after 1,500 were left out"):
        assert shown in text
    visible = re.sub(r"<[^>]*>", " ", html.partition("<body>")[2])
    assert not re.findall(r"\d{5,}", visible)


def test_page_names_each_bar_and_draws_a_source_that_was_wiped() -> None:
    wiped = replace(SOURCE, source="topic:orders", rows=0, first_id=None, last_id=None)
    found = Finding(
        kind=Kind.LACKING, source="topic:orders", against="database", id=3, last_id=400, rows=90
    )
    report = replace(CLEAN, sources=(SOURCE, wiped), findings=(found,))
    page = _Page(html_report(report, None, MADE))
    kinds = [attrs.get("class") for _, attrs in page.tags]
    assert (kinds.count("track"), kinds.count("bar"), kinds.count("fault")) == (2, 1, 1)
    assert kinds.count("name") == 2
    (mark,) = (attrs for _, attrs in page.tags if attrs.get("class") == "fault")
    assert float(mark["width"] or 0) > 800


def test_contradicted_mark_does_not_cover_what_else_was_found_in_the_bar() -> None:
    mark = Finding(kind=Kind.CONTRADICTED_MARK, source=SOURCE.source, after_id=0, until_id=400)
    gap = Finding(kind=Kind.GAP, source=SOURCE.source, after_id=100, until_id=140)
    page = _Page(html_report(replace(CLEAN, findings=(mark, gap)), None, MADE))
    widths = [float(a["width"] or 0) for _, a in page.tags if a.get("class") == "fault"]
    assert widths[0] < 1 < widths[1] < 200


def test_paths_break_between_their_parts_and_no_word_is_broken() -> None:
    path = "journal:/srv/orders/archive/of/a/long/name/journal.jsonl"
    source = replace(SOURCE, source=path, verdict=Verdict.COMPLETE)
    text = html_report(replace(CLEAN, sources=(source,)), None, MADE)
    assert "journal:/<wbr>srv/<wbr>orders/<wbr>" in text
    (cell,) = re.findall(r"<td[^>]*>[^/]*complete</span></td>", text)
    assert 'class=""' in cell
    assert 'data-name="Verdict"' in cell


def test_page_shows_hostile_text_and_makes_no_tag_of_it() -> None:
    page = _Page(html_report(broken(), PICTURE, MADE))
    tags = {tag for tag, _ in page.tags}
    assert HOSTILE in page.text
    assert tags.isdisjoint({"script", "img", "link", "iframe", "a", "object", "image", "use"})
    assert not [name for _, attrs in page.tags for name in attrs if name.startswith("on")]


def test_page_needs_nothing_beside_itself() -> None:
    text = html_report(broken(), PICTURE, MADE)
    page = _Page(text)
    outer = {"src", "href", "xlink:href", "action", "data", "srcset"}
    assert not [name for _, attrs in page.tags for name in attrs if name in outer]
    assert "url(" not in text
    assert "@import" not in text
    (policy,) = [a["content"] for t, a in page.tags if a.get("http-equiv")]
    assert policy == "default-src 'none'; style-src 'unsafe-inline'"


def test_page_draws_ids_batches_epochs_filled_gaps_and_findings() -> None:
    page = _Page(html_report(broken(), PICTURE, MADE))
    kinds = [attrs.get("class") for _, attrs in page.tags]
    assert kinds.count("ids") == 1
    assert (kinds.count("mean"), kinds.count("most")) == (40, 40)
    assert (kinds.count("band"), kinds.count("band odd")) == (1, 1)
    assert (kinds.count("gap"), kinds.count("fault"), kinds.count("bar")) == (1, 2, 1)
    assert "epoch 1" in page.text
    assert "epoch 2" in page.text
    assert "1 gap that receivers met" in page.text
    assert "not filled" not in page.text
    missing = replace(PICTURE, gaps=(replace(PICTURE.gaps[0], outcome="missing"), *PICTURE.gaps))
    text = _Page(html_report(broken(), missing, MADE)).text
    assert "2 gaps that receivers met, 1 not filled" in text


def test_label_of_an_epoch_that_begins_at_the_edge_stands_within_the_picture() -> None:
    late = (*PICTURE.tiles[:-1], replace(PICTURE.tiles[-1], epoch=3))
    text = html_report(broken(), replace(PICTURE, tiles=late), MADE)
    assert '<span style="right: 0">epoch 3<' in text


@pytest.mark.parametrize("picture", [None, ChartData(), replace(PICTURE, tiles=PICTURE.tiles[:1])])
def test_page_without_much_to_draw_is_whole(picture: ChartData | None) -> None:
    page = _Page(html_report(CLEAN, picture, MADE))
    assert "None." in page.text
    assert page.open == []


def test_page_of_an_empty_chain_without_head_says_so() -> None:
    empty = replace(SOURCE, rows=0, first_id=None, last_id=None)
    report = replace(CLEAN, verdict=Verdict.CONTIGUOUS, head=None, sources=(empty,))
    text = _Page(html_report(report, ChartData(), MADE)).text
    assert "Headnot known" in text
    assert "No rows." in text


def test_page_with_more_findings_than_it_shows_counts_the_rest() -> None:
    gaps = tuple(
        Finding(kind=Kind.GAP, source="database", after_id=n, until_id=n + 1) for n in range(1_500)
    )
    report = replace(
        CLEAN,
        verdict=Verdict.BROKEN,
        counts={"gap": 9_000},
        row_counts={"gap": 9_000},
        findings=gaps,
    )
    assert "8,000 more, not shown here" in _Page(html_report(report, None, MADE)).text


def test_page_of_several_chains_reports_each_verdict_first_and_then_all_of_each() -> None:
    gone = Unverified(chain_id=3, is_refused=False, reason=HOSTILE)
    chains = ChainsReport(
        outcomes=(CLEAN, replace(broken(), chain_id=8), gone), spark_start_seconds=0, seconds=3.0
    )
    page = _Page(html_chains_report(chains, {7: PICTURE}, MADE))
    assert page.open == []
    assert "1 of 3 chains clean" in page.text
    assert ("p", {"class": "verdict bad"}) in page.tags
    assert page.text.index(HOSTILE) < page.text.index("Verification of chain 7")
    assert "Verification of chain 8" in page.text
    assert {tag for tag, _ in page.tags}.isdisjoint({"script", "img"})
    partial = _Page(html_chains_report(replace(chains, outcomes=(CLEAN, gone)), {}, MADE))
    assert ("p", {"class": "verdict warn"}) in partial.tags  # nothing is wrong, as far as is known


@pytest.mark.parametrize("is_clean", [True, False])
def test_page_says_for_programs_whether_all_was_whole(is_clean: bool) -> None:
    verdict = Verdict.COMPLETE if is_clean else Verdict.BROKEN
    report = replace(CLEAN, verdict=verdict)
    assert report.is_clean is is_clean
    chains = ChainsReport(outcomes=(CLEAN, report), spark_start_seconds=0, seconds=1.0)
    says = f'<meta name="orderchain-clean" content="{"yes" if is_clean else "no"}">'
    assert says in html_report(report, None, MADE)
    assert says in html_chains_report(chains, {}, MADE)
