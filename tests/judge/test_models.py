"""The models themselves: what they refuse, what they promise, and that each rule is needed."""

from __future__ import annotations

from contextlib import nullcontext
from functools import cache, partial
from random import Random
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from tests.simulation.plan import CHAIN_ID
from tests.simulation.world import simulate

from . import statuses
from .chain_bytes import HEADER, Row, genesis, next_seal
from .explore import Seen, first_broken
from .fence import Fence
from .history import History
from .judge import Judge
from .publish import Publish
from .receive import Effects, Receive
from .rules import Diverged, uncovered
from .statuses import Statuses

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from .rules import Model

pytestmark = pytest.mark.simulation

DATABASE_ID = bytes(16)
GENESIS = genesis(DATABASE_ID, 1)


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
                rows = [row(len(fence.rows) + 1, pid, key)]
                yield "batch", epoch, 0, next_seal(fence.seal, epoch, 0, rows), rows
        for row_id in (1, 2):
            yield "answered", key, b"", row_id, row_id - 1
    if fence.replicated < fence.head:
        yield "durable", fence.head


def committed(model: Any) -> list[Seen]:
    """Return the next batch of one row, for models that are not about commits."""
    seen = model.chain.rows if hasattr(model, "chain") else model.rows
    row_id = len(seen) + 1
    batch = [row(row_id, row_id - 1, f"k{row_id}")]
    return [("batch", 1, 0, bytes([row_id]), batch)] if row_id < 3 else []


def steps_of_receive(receive: Receive) -> Iterator[Seen]:
    yield from committed(receive)
    for first in (1, 2):
        end = (first, first, bytes([first]))
        yield "run", "r", [row(first, first - 1, f"k{first}")], end
        yield "run", "r", [row(first, first - 1, "forged")], end
        yield "run", "r", [row(first, first - 1, f"k{first}")], (first, first, b"forged")


def steps_of_effects(effects: Effects) -> Iterator[Seen]:
    yield from committed(effects)
    for first in (1, 2):
        yield "effect", "r", [row(first, first - 1, f"k{first}")]


def record_of(publish: Publish, rows: list[Row]) -> bytes:
    """Return the frame of a batch of these rows, as docs/wire.md has it."""
    first, last = rows[0], rows[-1]
    body = msgspec.msgpack.encode(rows)
    seals = (
        publish.chain.seals.get(first[1], bytes(32)),
        publish.chain.seals.get(last[0], bytes(32)),
    )
    ids = first[1], first[0], last[0]
    return (
        HEADER.pack(
            b"OCHN", 2, 2, HEADER.size, 1, len(rows), len(body), 1, 1, bytes(16), *ids, *seals
        )
        + body
    )


def steps_of_publish(publish: Publish) -> Iterator[Seen]:
    yield from ((*batch[:3], batch[3] * 32, batch[4]) for batch in committed(publish))
    for first in (1, 2):
        for key in (f"k{first}", "forged"):
            yield "frame", record_of(publish, [row(first, first - 1, key)])


def steps_of_statuses(_: Statuses) -> Iterator[Seen]:
    """One delivery that is ready, one that is prepared, and every change of both."""
    for name in ("a", "b"):
        yield "stored", name, statuses.INIT if name == "a" else statuses.PREPARED, name == "a"
        for status in range(7):
            for is_decided in (True, False):
                yield "moved", name, status, is_decided
            yield "done", name, status


def led_fence(without: str = "") -> Fence:
    """Return a chain that is led, of which two orders are asked for."""
    fence = Fence(GENESIS, without)
    fence.term(1, 0)
    fence.asked(["a", "b"])
    return fence


MADE: dict[str, tuple[Callable[[str], Model], Callable[[Any], Iterator[Seen]]]] = {
    "fence": (led_fence, steps_of_fence),
    "publish": (partial(Publish, GENESIS), steps_of_publish),
    "receive": (partial(Receive, GENESIS), steps_of_receive),
    "effects": (Effects, steps_of_effects),
    "statuses": (Statuses, steps_of_statuses),
}


@pytest.mark.parametrize("name", MADE)
def test_whatever_a_model_lets_happen_keeps_what_it_promises(name: str) -> None:
    make, steps = MADE[name]
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
    make, steps = MADE[name]
    found = first_broken(make(rule), steps, 4)
    assert found is not None, "the rule promises nothing"
    assert found[0] == rule.partition(" ")[0], found


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


# -- logs -----------------------------------------------------------------------------------------


@cache
def log_of_a_world() -> tuple[bytes, list[Seen]]:
    """Return the database and the log of a world in which everything is seen."""
    for seed in range(200):
        world = simulate(seed, keeps=True, wrong_seals=0.0)
        log = world.judge.log
        assert log is not None
        seen = {what for what, *_ in log}
        if seen >= {"term", "batch", "frame", "run", "effect", "answered", "not_done", "conflict"}:
            return world.database.database_id.bytes, log
    raise AssertionError("no world shows everything")


def judged(log: Iterable[Seen]) -> Judge:
    judge = Judge(log_of_a_world()[0], CHAIN_ID)
    for what, *values in log:
        judge.saw(what, *values)
    return judge


def test_log_of_a_world_is_judged_again_as_it_was() -> None:
    judge = judged(log_of_a_world()[1])
    assert judge.fence.rows


def again(log: list[Seen], what: str) -> list[Seen]:
    """The last one of its kind is seen twice."""
    at = max(place for place, seen in enumerate(log) if seen[0] == what)
    return [*log[: at + 1], log[at], *log[at + 1 :]]


def forged(log: list[Seen], what: str) -> list[Seen]:
    """The last one of its kind has rows with another payload."""
    at = max(place for place, seen in enumerate(log) if seen[0] == what)

    def spoilt(value: Any) -> Any:
        if isinstance(value, list) and value and isinstance(value[0], tuple):
            return [(*value[0][:4], value[0][4] + b"!"), *value[1:]]
        if isinstance(value, bytes) and what == "frame":
            return value[:-1] + bytes([value[-1] ^ 1])
        return value

    return [*log[:at], tuple(map(spoilt, log[at])), *log[at + 1 :]]


def early(log: list[Seen], what: str) -> list[Seen]:
    """The first one of its kind is seen before anything was committed."""
    at = next(place for place, seen in enumerate(log) if seen[0] == what)
    return [log[at], *log[:at], *log[at + 1 :]]


@pytest.mark.parametrize(
    ("spoil", "what", "guarantee"),
    [
        (again, "term", "G7"),
        (again, "batch", "G1"),
        (forged, "batch", "G13"),
        (early, "frame", "G2"),
        (again, "run", "G5"),
        (forged, "run", "G2"),
        (again, "effect", "G5"),
        (forged, "effect", "G5"),
        (early, "answered", "G3"),
        (early, "conflict", "G4"),
    ],
)
def test_log_that_diverges_is_refused_by_its_guarantee(
    spoil: Callable[[list[Seen], str], list[Seen]], what: str, guarantee: str
) -> None:
    with pytest.raises(Diverged) as found:
        judged(spoil(log_of_a_world()[1], what))
    assert found.value.rule.startswith(f"{guarantee} "), found.value


def test_log_that_asks_some_rules_nothing_is_found_out() -> None:
    thin = judged(seen for seen in log_of_a_world()[1] if seen[0] in ("term", "asked", "batch"))
    missing = uncovered(*thin.models)
    assert "G3 acknowledged before committed" in missing
    assert "G2 frame before its commit" in missing
    assert "G1 parent" not in missing
