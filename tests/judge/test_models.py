"""The models themselves: what they refuse, what they promise, and that each rule is needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from itertools import count
from random import Random
from typing import Any

import msgspec
import pytest

from . import statuses
from .chain_bytes import HEADER, Row, genesis, next_seal
from .explore import Seen, first_broken, first_refused
from .fence import Fence
from .history import History
from .judge import Judge
from .publish import Publish
from .receive import Effects, Receive
from .rules import Diverged, Model, uncovered
from .statuses import Statuses

pytestmark = pytest.mark.simulation

DATABASE_ID = bytes(16)
GENESIS = genesis(DATABASE_ID, 1)
HEARTBEAT, BATCH_END = 1, 2


def row(row_id: int, pid: int, key: str) -> Row:
    return row_id, pid, key, 0, b""


# -- what may be tried on each model in a small world ---------------------------------------------


def steps_of_fence(fence: Fence) -> Iterator[Seen]:
    """Two terms, two orders, each asked for twice, and every answer."""
    yield "term", fence.epoch + 1, fence.head
    for key in ("a", "b"):
        yield "asked", [key]
        yield "not_done", [key], "refused"
        for epoch in range(1, fence.epoch + 1):
            for pid in {0, fence.head}:
                yield batch_of(fence, [row(len(fence.rows) + 1, pid, key)], epoch)
        for row_id in (1, 2):
            yield "answered", key, b"", row_id, row_id - 1
    if fence.replicated < fence.head:
        yield "durable", fence.head


def wrongs_of_fence(fence: Fence) -> Iterator[Seen]:
    first = row(fence.head + 1, fence.head, "a")
    yield "term", fence.epoch + 2, fence.head
    yield "term", fence.epoch + 1, fence.head + 1
    yield batch_of(fence, [first, row(fence.head + 2, fence.head, "b")], fence.epoch)
    yield batch_of(fence, [first], fence.epoch, at_us=-1)
    yield "batch", fence.epoch, 0, b"other", [first]
    yield "stored_head", fence.head + 1, fence.seal, fence.epoch
    yield "answered", "a", b"other", 1, 0
    yield "conflict", "a", b"other", 2
    yield "too_old", "b", 2, 2, 1
    yield "too_old", "a", 1, 2, 1


def batch_of(fence: Fence, rows: list[Row], epoch: int, at_us: int = 0) -> Seen:
    return "batch", epoch, at_us, next_seal(fence.seal, epoch, at_us, rows), rows


def committed(model: Any) -> list[Seen]:
    """Return the next batch of one row, for models that are not about commits."""
    seen = model.chain.rows if hasattr(model, "chain") else model.rows
    row_id = len(seen) + 1
    batch = [row(row_id, row_id - 1, f"k{row_id}")]
    return [("batch", 1, 0, bytes([row_id]) * 32, batch)] if row_id < 3 else []


def steps_of_receive(receive: Receive) -> Iterator[Seen]:
    yield from committed(receive)
    for first in (1, 2):
        seal = bytes([first]) * 32
        yield "run", "r", [row(first, first - 1, f"k{first}")], (first, first, seal)
        yield "run", "r", [row(first, first - 1, "forged")], (first, first, seal)
        yield "run", "r", [row(first, first - 1, f"k{first}")], (first, first, b"forged")


def wrongs_of_receive(_: Receive) -> Iterator[Seen]:
    seal = bytes([1]) * 32
    yield "run", "r", [row(1, 0, "k1")], (2, 1, seal)
    yield "filled", 0, 1, [], (1, 1, seal)


def steps_of_effects(effects: Effects) -> Iterator[Seen]:
    yield from committed(effects)
    for first in (1, 2):
        yield "effect", "r", [row(first, first - 1, f"k{first}")]


def wrongs_of_effects(_: Effects) -> Iterator[Seen]:
    yield "journal", "r", 1
    yield "resumed", "r", 1, True


def record_of(publish: Publish, rows: list[Row], **others: Any) -> bytes:
    """Return the frame of a batch of these rows, or with others, as docs/wire.md has it."""
    first, last = rows[0], rows[-1]
    body = b"" if others.get("flags") == HEARTBEAT else msgspec.msgpack.encode(rows)
    seals = publish.chain.seals
    header = {
        "magic": b"OCHN", "version": 2, "flags": BATCH_END, "header_bytes": HEADER.size,
        "chain": 1, "count": len(rows), "body_bytes": len(body), "epoch": 1, "publisher_epoch": 1,
        "nonce": bytes(16), "pid": first[1], "first": first[0], "last": last[0],
        "before": seals.get(first[1], bytes(32)), "after": seals.get(last[0], bytes(32)),
    }  # fmt: skip
    return HEADER.pack(*(header | others).values()) + body


def steps_of_publish(publish: Publish) -> Iterator[Seen]:
    yield from committed(publish)
    for first in (1, 2):
        for key in (f"k{first}", "forged"):
            yield "frame", record_of(publish, [row(first, first - 1, key)])


def wrongs_of_publish(publish: Publish) -> Iterator[Seen]:
    rows, both = [row(1, 0, "k1")], [row(1, 0, "k1"), row(2, 1, "k2")]
    for others in (
        {"publisher_epoch": 0}, {"pid": 1}, {"first": 2}, {"last": 2}, {"count": 2},
        {"epoch": 0}, {"flags": 0, "after": bytes(32)}, {"before": b""}, {"flags": 0},
        {"flags": HEARTBEAT, "pid": 1, "count": 0}, {"flags": HEARTBEAT},
    ):  # fmt: skip
        yield "frame", record_of(publish, rows, **others)
    yield "frame", record_of(publish, both)
    yield "published", 1, []


def steps_of_history(_: History) -> Iterator[Seen]:
    """Two orders, of which the second one has the first place."""
    for key, row_id in (("a", 2), ("b", 1)):
        yield "asked", [key]
        yield "answered", key, b"", row_id, 0
    yield ("over",)


def steps_of_statuses(_: Statuses) -> Iterator[Seen]:
    """One delivery that is ready, one that is prepared, and every change of both."""
    for name in ("a", "b"):
        yield "stored", name, statuses.INIT if name == "a" else statuses.PREPARED, name == "a"
        for status in range(7):
            for is_decided in (True, False):
                yield "moved", name, status, is_decided
            yield "done", name, status


def wrongs_of_statuses(_: Statuses) -> Iterator[Seen]:
    yield "stored", "c", statuses.CONSUMED, True
    yield "tried", "a", 2, 1
    yield "over", {}, {}, ["a", "b"]


def led_fence(without: str = "") -> Fence:
    """Return a chain that is led, of which two orders are asked for."""
    fence = Fence(GENESIS, without)
    fence.term(1, 0)
    fence.asked(["a", "b"])
    return fence


def timed_history(without: str = "") -> History:
    return History(partial(next, count()), without)


def nothing(_: Model) -> Iterator[Seen]:
    yield from ()


Steps = Callable[[Any], Iterator[Seen]]

MADE: dict[str, tuple[Callable[[str], Model], Steps, Steps]] = {
    "fence": (led_fence, steps_of_fence, wrongs_of_fence),
    "publish": (partial(Publish, GENESIS), steps_of_publish, wrongs_of_publish),
    "receive": (partial(Receive, GENESIS), steps_of_receive, wrongs_of_receive),
    "effects": (Effects, steps_of_effects, wrongs_of_effects),
    "history": (timed_history, steps_of_history, nothing),
    "statuses": (Statuses, steps_of_statuses, wrongs_of_statuses),
}
"""How a model is made, what may be tried on it, and what is wrong at any time."""


@pytest.mark.parametrize("name", [name for name in MADE if name != "history"])
def test_whatever_a_model_lets_happen_keeps_what_it_promises(name: str) -> None:
    """A history is judged at its end alone."""
    make, steps, _ = MADE[name]
    assert first_broken(make(""), steps, 3 if name == "statuses" else 4) is None


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("fence", "G7 fence"),
        ("fence", "G1 parent"),
        ("fence", "G4 one row a key"),
        ("fence", "G4 one place a key"),
        ("fence", "G3 acknowledged before committed"),
        ("publish", "G2 frame before its commit"),
        ("statuses", "G10 table"),
        ("receive", "G5 order of delivery"),
        ("receive", "G2 delivered before committed"),
        ("effects", "G5 effects are a prefix"),
    ],
)
def test_variant_without_a_rule_breaks_its_guarantee(name: str, rule: str) -> None:
    make, steps, _ = MADE[name]
    found = first_broken(make(rule), steps, 4)
    assert found is not None, "the rule promises nothing"
    assert found[0] == rule.partition(" ")[0], found


@pytest.mark.parametrize(
    ("name", "rule"), [(name, rule) for name, (make, *_) in MADE.items() for rule in make("").RULES]
)
def test_each_rule_refuses_what_no_other_one_does(name: str, rule: str) -> None:
    make, steps, wrongs = MADE[name]
    assert first_refused(make(""), rule, steps, wrongs, 5) is not None


def test_rules_of_every_model_of_a_judge_are_tried() -> None:
    tried = {type(make("")) for make, *_ in MADE.values()}
    assert {type(model) for model in Judge(DATABASE_ID, 1).models} <= tried


# -- times ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(200))
def test_history_is_judged_as_each_pair_of_its_calls_would_be(seed: int) -> None:
    random, now = Random(seed), iter(range(1_000))
    history = History(lambda: float(next(now)))
    open_keys, free_ids = [], [1, 2, 3, 4]
    if seed % 2:
        random.shuffle(free_ids)
    for number in range(20):
        kind = random.random()
        if kind < 0.4 and number < 8:
            open_keys.append(f"k{number}")
            history.asked(open_keys[-1:])
        elif kind < 0.8 and open_keys and free_ids:
            key = open_keys.pop(random.randrange(len(open_keys)))
            history.answered(key, b"", free_ids.pop(0), 0)
        elif kind > 0.95:
            history.looked(random.randrange(4), float(number))
    ((_, is_linearizable),) = history.promises()
    with nullcontext() if is_linearizable else pytest.raises(Diverged, match="G4 linearizable"):
        history.over()


# -- the judge ------------------------------------------------------------------------------------


def test_judge_that_is_asked_little_says_which_rules_were_not() -> None:
    judge = Judge(DATABASE_ID, 1)
    judge.saw("term", 1, 0)
    judge.saw("asked", ["a"])
    judge.saw(*batch_of(judge.fence, [row(1, 0, "a")], 1))
    missing = uncovered(*judge.models)
    assert "G3 acknowledged before committed" in missing
    assert "G2 frame before its commit" in missing
    assert "G1 parent" not in missing


def test_judge_who_is_shown_what_no_model_knows_says_so() -> None:
    """Else a word that changes in one place has a judge look away in silence."""
    judge = Judge(DATABASE_ID, 1)
    with pytest.raises(LookupError, match="commited"):
        judge.saw("commited", 1)
    judge.mute()
    judge.saw("commited", 1)
