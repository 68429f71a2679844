"""The page for people: what it says, that it stands alone, and that hostile text stays text."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from typing import Any

import pytest
from msgspec.structs import replace

from chain_verifier.findings import Finding, Kind
from chain_verifier.html import FilledGap, Picture, Tile, html_chains_report, html_report
from chain_verifier.report import (
    ChainsReport,
    Comparison,
    Report,
    SourceReport,
    Unverified,
    Verdict,
)

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
HOSTILE = "journal:</title><script>alert(1)</script><img src=x onerror='a' title=\"b\">&"

SOURCE = SourceReport(
    source="database", verdict=Verdict.COMPLETE, rows=90, first_id=3, last_id=400, counts={},
    notes=(), seconds=1.5,
)  # fmt: skip
CLEAN = Report(
    chain_id=7, verdict=Verdict.COMPLETE, start=0, head=400, sources=(SOURCE,), comparisons=(),
    counts={}, findings=(), spark_start_seconds=2.0, seconds=4.0,
)  # fmt: skip
PICTURE = Picture(
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
        if tag not in ("meta", "br"):
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
        source=HOSTILE, against=HOSTILE, is_equal=False, counts={"differing": 1}, seconds=0.5
    )
    return replace(
        CLEAN, verdict=Verdict.BROKEN, sources=(source,), comparisons=(compared,),
        counts={"gap": 1, "differing": 1}, findings=(gap, other),
    )  # fmt: skip


def test_page_begins_with_the_verdict_and_tells_findings_and_durations() -> None:
    page = _Page(html_report(broken(), PICTURE, NOW))
    assert page.text.index("broken") < page.text.index("Findings: 2") < page.text.index("Sources")
    assert "order 40 is missing, and no row is between 30 and it" in page.text
    assert "starting Spark" in page.text
    assert "made 2026-05-01 12:00:00 UTC in 4.0 s" in page.text
    assert page.open == []


def test_page_shows_hostile_text_and_makes_no_tag_of_it() -> None:
    page = _Page(html_report(broken(), PICTURE, NOW))
    tags = {tag for tag, _ in page.tags}
    assert HOSTILE in page.text
    assert tags.isdisjoint({"script", "img", "link", "iframe", "a", "object", "image", "use"})
    assert not [name for _, attrs in page.tags for name in attrs if name.startswith("on")]


def test_page_needs_nothing_beside_itself() -> None:
    text = html_report(broken(), PICTURE, NOW)
    page = _Page(text)
    outer = {"src", "href", "xlink:href", "action", "data", "srcset"}
    assert not [name for _, attrs in page.tags for name in attrs if name in outer]
    assert "url(" not in text
    assert "@import" not in text
    (policy,) = [a["content"] for t, a in page.tags if a.get("http-equiv")]
    assert policy == "default-src 'none'; style-src 'unsafe-inline'"


def test_page_draws_ids_batches_epochs_filled_gaps_and_findings() -> None:
    page = _Page(html_report(broken(), PICTURE, NOW))
    kinds = [attrs.get("class") for _, attrs in page.tags]
    assert kinds.count("ids") == 1
    assert (kinds.count("mean"), kinds.count("most")) == (40, 40)
    assert (kinds.count("band"), kinds.count("band odd")) == (1, 1)
    assert (kinds.count("gap"), kinds.count("fault"), kinds.count("bar")) == (1, 2, 1)
    assert "epoch 1" in page.text
    assert "epoch 2" in page.text


def test_label_of_an_epoch_that_begins_at_the_edge_stands_within_the_picture() -> None:
    late = (*PICTURE.tiles[:-1], replace(PICTURE.tiles[-1], epoch=3))
    text = html_report(broken(), replace(PICTURE, tiles=late), NOW)
    (left,) = re.findall(r'<text x="([\d.]+)"[^>]*>epoch 3<', text)
    assert float(left) + 60 < 900


@pytest.mark.parametrize("picture", [None, Picture(), replace(PICTURE, tiles=PICTURE.tiles[:1])])
def test_page_without_much_to_draw_is_whole(picture: Picture | None) -> None:
    page = _Page(html_report(CLEAN, picture, NOW))
    assert "None." in page.text
    assert page.open == []


def test_page_of_an_empty_chain_without_head_says_so() -> None:
    empty = replace(SOURCE, rows=0, first_id=None, last_id=None)
    report = replace(CLEAN, verdict=Verdict.CONTIGUOUS, head=None, sources=(empty,))
    text = _Page(html_report(report, Picture(), NOW)).text
    assert "head not known" in text
    assert "No rows." in text


def test_page_with_more_findings_than_it_shows_counts_the_rest() -> None:
    gaps = tuple(
        Finding(kind=Kind.GAP, source="database", after_id=n, until_id=n + 1) for n in range(1_500)
    )
    report = replace(CLEAN, verdict=Verdict.BROKEN, counts={"gap": 9_000}, findings=gaps)
    assert "8000 more, not shown here" in _Page(html_report(report, None, NOW)).text


def test_page_of_several_chains_tells_each_verdict_first_and_then_all_of_each() -> None:
    gone = Unverified(chain_id=3, is_refused=False, reason=HOSTILE)
    chains = ChainsReport(
        outcomes=(CLEAN, replace(broken(), chain_id=8), gone), spark_start_seconds=0, seconds=3.0
    )
    page = _Page(html_chains_report(chains, {7: PICTURE}, NOW))
    assert page.open == []
    assert "1 of 3 clean" in page.text
    assert page.text.index(HOSTILE) < page.text.index("Verification of chain 7")
    assert "Verification of chain 8" in page.text
    assert {tag for tag, _ in page.tags}.isdisjoint({"script", "img"})
