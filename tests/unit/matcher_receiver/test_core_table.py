"""The table of docs/protocol.md, "A frame": every line, in its order, over every kind of header."""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from chain_kernel.frame import FrameHeader
from chain_kernel.model import ChainPosition, Mark
from matcher_receiver.core import ReceiveCore
from matcher_receiver.decisions import (
    CHECK_EPOCH,
    CHECK_SEAL,
    CONFIRM_NONCE,
    DELIVER,
    DELIVER_NEW_PART,
    DROP_CHAIN,
    DROP_MAC,
    DROP_OLD,
    IN_STEP,
    Fill,
    FrameDecision,
)
from tests.builders.chains import NEXT_NONCE, Chain, make_chain, signed

PROTOCOL = Path(__file__).parents[3] / "docs" / "protocol.md"


class Case(NamedTuple):
    """A header, and what it meets."""

    header: FrameHeader
    head: Mark
    is_known: bool
    is_signed: bool


class Line(NamedTuple):
    """A line of the table: when it fits, what is decided, and how the page writes that."""

    fits: Callable[[Case], bool]
    decision: Callable[[Case], FrameDecision]
    written: str


def is_heartbeat(case: Case) -> bool:
    return case.header.count == 0


LINES = {
    2: Line(lambda c: c.header.chain_id != 7, lambda _: DROP_CHAIN, "drop `chain`"),
    3: Line(lambda c: not c.is_known, lambda _: CONFIRM_NONCE, "`ConfirmNonce`"),
    4: Line(lambda c: not c.is_signed, lambda _: DROP_MAC, "drop `mac`"),
    5: Line(
        lambda c: is_heartbeat(c) and c.header.last_id > c.head.id,
        lambda c: Fill(c.header.last_id, "heartbeat"),
        "`Fill(last_id)`",
    ),
    6: Line(
        lambda c: is_heartbeat(c) and c.header.last_id < c.head.id,
        lambda _: DROP_OLD,
        "drop as old",
    ),
    7: Line(
        lambda c: is_heartbeat(c) and c.head.is_batch_end and c.header.seal_before == c.head.seal,
        lambda _: IN_STEP,
        "in step",
    ),
    8: Line(is_heartbeat, lambda _: CHECK_SEAL, "`Check` `seal`"),
    9: Line(lambda c: c.header.last_id <= c.head.id, lambda _: DROP_OLD, "drop as old"),
    10: Line(
        lambda c: c.header.first_pid > c.head.id,
        lambda c: Fill(c.header.first_pid, "frame"),
        "`Fill(first_pid)`",
    ),
    11: Line(lambda c: c.header.seal_before != c.head.seal, lambda _: CHECK_SEAL, "`Check` `seal`"),
    12: Line(lambda c: c.header.epoch < c.head.epoch, lambda _: CHECK_EPOCH, "`Check` `epoch`"),
    13: Line(lambda c: c.header.first_pid == c.head.id, lambda _: DELIVER, "`Deliver`"),
    14: Line(lambda _: True, lambda _: DELIVER_NEW_PART, "`DeliverNewPart`"),
}


@pytest.fixture
def chain() -> Chain:
    chain = make_chain([4, 6, 5])
    assert chain.chain_id == 7
    return chain


def cores(chain: Chain) -> Iterator[ReceiveCore]:
    """One at the end of a batch, one inside of one; both know the leader."""
    for at_id in (chain.batches[0].last_id, chain.batches[1].events[3].id):
        core = ReceiveCore(chain.chain_id, chain.mark(at_id))
        core.judge_standing(
            ChainPosition(head=chain.head(), mark=core.head, is_primary=True, terms=chain.terms),
            "start",
        )
        core.go_live()
        yield core


def cases(chain: Chain, head: Mark) -> Iterator[Case]:
    """Headers of all kinds: whose, by whom, with ids on every side of the head, with which seal."""
    leader = chain.nonce
    for chain_id, nonce, seal, epoch, is_signed in product(
        (7, 8), (leader, b"nobody knows me!"), (head.seal, b"\7" * 32),
        (head.epoch - 1, head.epoch, head.epoch + 1), (True, False),
    ):  # fmt: skip
        ids = [(last_id, last_id, last_id, 0) for last_id in range(head.id - 2, head.id + 3)] + [
            (pid, pid + 1, last_id, last_id - pid)
            for pid in range(head.id - 3, head.id + 3)
            for last_id in range(pid + 1, head.id + 5)
        ]
        for first_pid, first_id, last_id, count in ids:
            header = msgspec.structs.replace(
                chain.heartbeat_header(),
                chain_id=chain_id,
                publisher_nonce=nonce,
                seal_before=seal,
                epoch=epoch,
                first_pid=first_pid,
                first_id=first_id,
                last_id=last_id,
                count=count,
            )
            yield Case(header, head, nonce == leader, is_signed)


def test_first_line_that_fits_decides_whatever_else_fits(chain: Chain) -> None:
    seen: Counter[int] = Counter()
    for core in cores(chain):
        for case in cases(chain, core.head):
            number = next(number for number, line in LINES.items() if line.fits(case))
            record = signed(case.header, (), None if case.is_signed else NEXT_NONCE)
            decision = core.admit(case.header, record) or core.judge(case.header)
            assert decision == LINES[number].decision(case), (number, case)
            seen[number] += 1
    assert seen.keys() == LINES.keys(), "a line that no header meets"


def test_page_reports_the_same_decisions_line_by_line() -> None:
    section = PROTOCOL.read_text(encoding="utf-8").partition("### A frame\n")[2]
    found = re.findall(r"^\| (\d+) \| .*? \| (.*?) \| .*? ?\|$", section, flags=re.MULTILINE)
    shown = {int(number): decision for number, decision in found}
    assert shown.pop(1).startswith("drop, counted by its reason")  # the frame codec's own tests
    assert shown == {number: line.written for number, line in LINES.items()}
