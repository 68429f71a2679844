"""What the console makes of a snapshot: who is how, what needs a person, what has changed."""

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from chainctl.console.state import (
    Document,
    Look,
    OutboxLine,
    Overview,
    ReportFile,
    VerifiedLine,
    blocking,
    changes,
    document,
    notices,
)
from chainctl.views import ActLine, ChainLine, GapLine, ReceiverLine, ShadowLine
from outbox.acts import InboxCount

CHAIN = ChainLine(
    chain=7, epoch=3, leader="seq-a", leader_state="leads", leader_since="2026-11-24T08:00:00.0Z",
    last_beat_seconds=0.4, lease_seconds=5.0, head_persisted=500, head_published=500,
    unpublished_ids=0, unpublished_seconds=0.0, last_commit=None, topic="orderchain.7",
    backend=None, unpublished_rows=0, is_published=True,
    partition_ids=10_000_000, created="2026-11-24T07:00:00.0Z",
)  # fmt: skip
WAITING = replace(CHAIN, unpublished_ids=1, unpublished_rows=1, unpublished_seconds=61.0)
RECEIVER = ReceiverLine(
    chain=7, receiver="matching", checkpoint="stored", head_delivered=500, behind_ids=0,
    behind_rows=0, behind_seconds=0.0, updated="2026-11-24T08:00:00.0Z", agrees="yes", halted="",
    halt_detail="",
)  # fmt: skip
SHADOW = ShadowLine(
    chain=7, receiver="candidate", shadow_of="matching", compared=40, compared_id=500, groups=0,
    differs_group=None, differs_id=None, equal_id=None, stored_digest=None, found_digest=None,
    updated="2026-11-24T08:00:00.0Z",
)  # fmt: skip
DIFFERS = replace(SHADOW, groups=1, differs_group="ALPHA", differs_id=410, equal_id=400)
GAP = GapLine(
    chain=7, receiver="matching", after_id=400, until_id=420, rows=20, cause="frame",
    source="standby", outcome="filled", found="2026-11-24T07:00:00.0Z", seconds=0.002,
)  # fmt: skip
VERIFIED = VerifiedLine(
    chain=7, until_id=500, verified_by="audit", verified_at="2026-11-24T07:00:00.0Z",
    contradicted_id=None, contradicted=0,
)  # fmt: skip
COUNT = OutboxLine(
    destination="clearing",
    status="confirmed",
    deliveries=4,
    oldest_seconds=1.0,
    overdue=0,
    overdue_seconds=None,
    trouble=None,
    silent=None,
)
REPORT = ReportFile(title="Chain 7: broken", written="2026-11-24T07:00:00.0Z", is_clean=True)
INBOX = InboxCount("books", 2, 0)
WELL = Overview(
    read_at="2026-11-24T08:00:01.0Z", database_id="d", chains=(CHAIN,), receivers=(RECEIVER,),
    shadows=(SHADOW,), gaps=(GAP,), outbox=(COUNT,), inboxes=(INBOX,), verified=(VERIFIED,),
    report=REPORT,
)  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "state"),
    [
        ({}, "keeps up"),
        ({"behind_ids": 9_000, "behind_seconds": 4.0}, "keeps up"),
        ({"behind_ids": 1, "behind_seconds": 61.0}, "late"),
        ({"behind_ids": 10_001, "behind_seconds": 5.1}, "late"),
        ({"agrees": "archived"}, "keeps up"),
        ({"agrees": "-"}, "keeps up"),
        ({"agrees": "another seal"}, "contradicted"),
        ({"halted": "ForkFound at 7", "agrees": "another seal"}, "halted"),
    ],
)
def test_receiver_is_halted_before_contradicted_before_late(
    fields: dict[str, Any], state: str
) -> None:
    assert replace(RECEIVER, **fields).state == state


def test_nothing_needs_a_person_where_all_is_well() -> None:
    assert notices(WELL) == []
    handed_over = replace(CHAIN, leader_state="handed over", last_beat_seconds=9_000.0)
    assert notices(replace(WELL, chains=(handed_over,))) == []
    assert notices(Overview(read_at="", database_id="")) == []


@pytest.mark.parametrize(
    ("part", "line", "level", "words"),
    [
        ("chains", replace(CHAIN, leader_state="silent"), "bad", "leader seq-a is silent"),
        ("chains", WAITING, "warn", "1 row waits for the broker"),
        ("chains", replace(WAITING, leader_state="silent"), "bad", "leader seq-a is silent"),
        ("chains", replace(WAITING, leader_state="handed over"), "warn", "waits for a leader"),
        ("receivers", replace(RECEIVER, halted="ForkFound at 7"), "bad", "halted (ForkFound at 7)"),
        ("receivers", replace(RECEIVER, agrees="no such batch"), "bad", "contradicts"),
        ("receivers", replace(RECEIVER, behind_ids=1, behind_seconds=99.0), "warn", "too far"),
        ("shadows", DIFFERS, "warn", "candidate of matching: it differs in 'ALPHA' after id 410"),
        ("shadows", replace(DIFFERS, groups=2), "warn", "equal up to 400; 2 groups in all."),
        ("shadows", replace(DIFFERS, differs_group="", equal_id=0), "warn", "410, never equal."),
        ("gaps", replace(GAP, outcome="missing", until_id=501), "bad", "after 400 up to 501"),
        ("gaps", replace(GAP, outcome="open", until_id=501), "warn", "(open)"),
        ("outbox", replace(COUNT, status="abnormal"), "bad", "4 deliveries to clearing are"),
        ("outbox", replace(COUNT, status="abnormal", deliveries=1), "bad", "1 delivery to clear"),
        ("outbox", replace(COUNT, trouble="topic t is not there"), "bad", "topic t is not there"),
        ("outbox", replace(COUNT, destination=None, trouble="no relay"), "bad", "Outbox: no relay"),
        ("outbox", replace(COUNT, silent="c is silent"), "warn", "clearing: c is silent."),
        ("outbox", replace(COUNT, overdue=3), "warn", "3 deliveries to clearing fell due"),
        ("inboxes", replace(INBOX, dead=1), "bad", "given up 1 message. It is a dead letter"),
        ("inboxes", replace(INBOX, dead=3), "bad", "given up 3 messages. They are dead letters"),
        ("verified", replace(VERIFIED, contradicted_id=90, contradicted=2), "bad", "up to 90"),
    ],
)  # fmt: skip
def test_what_needs_a_person_is_named_once_with_its_place(
    part: str, line: Any, level: str, words: str
) -> None:
    (notice,) = notices(replace(WELL, **{part: (line,)}))
    assert (notice.section, notice.level) == (part, level)
    assert words in notice.text
    assert notice.chain == (None if part in ("outbox", "inboxes") else 7)


@pytest.mark.parametrize(("is_clean", "count"), [(False, 1), (True, 0), (None, 0)])
def test_last_report_needs_a_person_where_it_is_not_clean(
    is_clean: bool | None, count: int
) -> None:
    found = notices(replace(WELL, report=replace(REPORT, is_clean=is_clean)))
    assert [(each.section, each.level, each.chain) for each in found] == [
        ("verified", "bad", None)
    ] * count
    assert all("Chain 7: broken" in each.text for each in found)


def test_text_of_a_notice_stays_while_only_time_passes() -> None:
    silent = replace(CHAIN, leader_state="silent", unpublished_ids=5, unpublished_seconds=70.0)
    late = replace(RECEIVER, behind_ids=5, behind_seconds=70.0)
    now = replace(WELL, chains=(silent,), receivers=(late,))
    later = replace(
        now,
        chains=(replace(silent, last_beat_seconds=90.0, unpublished_seconds=95.0),),
        receivers=(replace(late, behind_seconds=95.0),),
    )
    assert notices(now) == notices(later)


def test_worst_notices_come_first() -> None:
    late = replace(RECEIVER, chain=1, behind_ids=1, behind_seconds=99.0)
    halted = replace(RECEIVER, chain=9, halted="ForkFound at 7")
    found = notices(replace(WELL, receivers=(late, halted)))
    assert [notice.chain for notice in found] == [9, 1]


def test_gap_that_its_receiver_has_passed_blocks_nothing() -> None:
    interrupted = replace(GAP, outcome="interrupted")
    ahead = replace(interrupted, after_id=500, until_id=520)
    unknown = replace(interrupted, receiver="gone")
    snapshot = replace(WELL, gaps=(GAP, interrupted, ahead, unknown))
    assert blocking(snapshot) == [ahead, unknown]
    shown = document(replace(WELL, gaps=(GAP, ahead)))["gaps"]
    assert {key: gap["blocks"] for key, gap in shown.items()} == {
        "7/matching/400": False, "7/matching/500": True,
    }  # fmt: skip


# -- how fast --------------------------------------------------------------------------------------


def test_pace_is_of_orders_between_two_looks() -> None:
    before, later = Look(100.0, {1: 10, 2: 50, 3: 9}), Look(102.0, {1: 4_000, 2: 50, 4: 7})
    assert before.moved(later) == {1: 10}
    # The ids of chain 1 have skipped numbers: what counts are its 30 orders.
    assert before.paces(later, {1: 30}) == {1: 15.0, 2: 0.0}


@pytest.mark.parametrize("at", [100.0, 99.0, 131.0])
def test_looks_that_lie_too_far_apart_show_no_pace(at: float) -> None:
    before, later = Look(100.0, {1: 10}), Look(at, {1: 90})
    assert before.moved(later) == {}
    assert before.paces(later, {}) == {}


# -- as it is sent ---------------------------------------------------------------------------------


def test_document_holds_every_part_of_a_snapshot() -> None:
    act = ActLine(
        act_id=12, chain=7, receiver=None, act="takeover", actor="eve", reason="it hangs",
        detail="epoch 3", login="eve", acted_at="2026-11-24T07:30:00.0Z",
    )  # fmt: skip
    snapshot = replace(WELL, acts=(act,), absent={"outbox": "none"})
    found = document(snapshot)
    assert {name: list(rows) for name, rows in found.items()} == {
        "chains": ["7"], "receivers": ["7/matching"], "shadows": ["7/candidate"],
        "gaps": ["7/matching/400"], "acts": ["12"],
        "outbox": ["clearing/confirmed"], "inboxes": ["books"], "verified": ["7"],
        "report": ["last"], "absent": ["outbox"], "notices": [], "about": ["database"],
    }  # fmt: skip
    assert found["receivers"]["7/matching"]["state"] == "keeps up"
    assert found["absent"]["outbox"]["why"] == "none"


_values = st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["", "a"])
_rows = st.dictionaries(st.sampled_from("abc"), st.fixed_dictionaries({"x": _values, "y": _values}))
_documents = st.fixed_dictionaries({"one": _rows, "two": _rows})


@given(before=_documents, after=_documents)
def test_changes_turn_one_document_into_the_next_and_name_nothing_else(
    before: Document, after: Document
) -> None:
    found = changes(before, after)
    state = copy.deepcopy(before)
    for section, rows in found.items():
        for key, fields in rows.items():
            old = state[section].get(key, {})
            if fields is None:
                del state[section][key]
            else:
                assert all(old.get(name, NOTHING) != value for name, value in fields.items())
                state[section][key] = {**old, **fields}
    assert state == after
    assert changes(after, after) == {}


NOTHING = object()
"""Equal to no value of a row."""
