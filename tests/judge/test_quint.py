"""The fence in Quint: fence.qnt keeps its promises, and its stories are judged by fence.py."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.programs import completed

from .chain_bytes import genesis, next_seal
from .fence import Fence
from .rules import Diverged

if TYPE_CHECKING:
    from collections.abc import Iterator

QUINT = Path(sys.prefix) / "quint/node_modules/.bin/quint"
SPECIFICATION = Path(__file__).with_name("fence.qnt")
GENESIS = genesis(bytes(16), 1)
STORIES = 2_000
SHOWN = 300
"""Stories whose last state is written, and judged."""
STEPS = 16
SECONDS = 600
"""What a run may take on a machine that is busy with other tests; alone it is some seconds."""
CHAIN = 1
"""The server that is promoted, whose log is the chain."""

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.timeout(SECONDS + 10),
    pytest.mark.skipif(not QUINT.exists(), reason="Quint is not installed, which needs npm"),
]


def last_states(tmp_path: Path, variant: str) -> tuple[bool, list[dict[str, Any]]]:
    """Run a variant; return whether it kept its promises, and the last state of its stories."""
    options = [f"--main={variant}", "--invariant=promises", "--backend=typescript", "--seed=1"]
    options += [f"--max-samples={STORIES}", f"--max-steps={STEPS}", f"--n-traces={SHOWN}"]
    command = [
        str(QUINT),
        "run",
        *options,
        f"--out-itf={tmp_path}/{{seq}}.json",
        str(SPECIFICATION),
    ]
    done = completed(*command, timeout=SECONDS)
    is_kept = "[ok] No violation found" in done.stdout
    assert is_kept or "[violation]" in done.stdout, done.stdout + done.stderr
    files = sorted(tmp_path.glob("*.json"))
    return is_kept, [plain(json.loads(file.read_text())["states"][-1]) for file in files]


def plain(value: Any) -> Any:
    """Return a value of the informal trace format in Python's own types."""
    if isinstance(value, list):
        return [plain(one) for one in value]
    if not isinstance(value, dict):
        return value
    if "#bigint" in value:
        return int(value["#bigint"])
    if "#set" in value:
        return plain(value["#set"])
    if "#map" in value:
        return {plain(key): plain(one) for key, one in value["#map"]}
    return {name.rpartition("::")[2]: plain(one) for name, one in value.items()}


def judge(state: dict[str, Any]) -> None:
    """Show the chain of the last state, and all answers, to fence.py. Raises Diverged."""
    fence = Fence(GENESIS)
    for entry in state["logs"][CHAIN]:
        show(fence, **entry)
    fence.durable(fence.head)
    pids = {row[0]: row[1] for row in fence.rows}
    for answer in state["answers"]:
        fence.answered(answer["key"], b"", answer["id"], pids.get(answer["id"], -1))


def show(fence: Fence, epoch: int, id: int, pid: int, key: str) -> None:  # noqa: A002
    if not key:
        fence.term(epoch, pid)
        return
    rows = [(id, pid, key, 0, b"")]
    fence.asked([key])
    fence.batch(epoch, 0, next_seal(fence.seal, epoch, 0, rows), rows)


def broken(states: list[dict[str, Any]]) -> Iterator[str]:
    for state in states:
        try:
            judge(state)
        except Diverged as error:
            yield error.rule


def test_fence_keeps_its_promises_in_both_languages(tmp_path: Path) -> None:
    is_kept, states = last_states(tmp_path, "right")

    assert is_kept
    assert not list(broken(states))
    assert {len(state["answers"]) for state in states} >= {0, 1, 2}
    assert any(state["is_promoted"] and state["answers"] for state in states)


@pytest.mark.parametrize(
    ("variant", "rules"),
    [
        ("without_fence", {"G7 fence"}),
        ("without_one_server", {"G4 one row a key"}),
        ("without_barrier", {"G3 acknowledged before committed", "G4 one place a key"}),
        ("without_replication", {"G3 acknowledged before committed", "G4 one place a key"}),
        ("without_keys", {"G4 one row a key"}),
    ],
)
def test_variant_without_a_rule_breaks_what_the_judge_names(
    tmp_path: Path, variant: str, rules: set[str]
) -> None:
    is_kept, states = last_states(tmp_path, variant)

    assert not is_kept
    assert set(broken(states)) & rules
