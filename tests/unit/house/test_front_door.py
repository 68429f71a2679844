"""The front door: its names, what they cost, and what it says when one is not to be had."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import orderchain
import outbox  # noqa: F401 - typed, below
from orderchain import errors
from tests.programs import completed
from tests.sources import PRODUCT

ROOT = Path(__file__).parents[3]


def run(program: str) -> subprocess.CompletedProcess[str]:
    return completed(sys.executable, "-c", program, cwd=ROOT)


LINES = (
    "from orderchain.errors import KeyConflict",
    "from orderchain import SequencerTuning, ReceiverTuning, FileIntake, StartAt, __version__",
    "from outbox import Destination, add, Relay, RelayConfig, Consumer, ConsumerConfig, StartAt",
    "from outbox import FireAfterCommit, CheckBack, CheckingConfig, decide, check_decision",
    "from outbox import CheckedSender, CheckedConfig, CallbackService, CallbackConfig",
    "from outbox import MessageService, ServiceConfig, MessageClient",
    "from orderchain.testing import MemoryChain, run_virtual",
    "from orderchain.spark import verify_frame",
    "from orderchain import Fold, state_as_of",
)
"""What newcomers type."""

REFUSALS = {
    "orderchain.SequencerConfig(database='postgresql://d')":
    "chain_id of SequencerConfig was not given, expected a number",
    "orderchain.SequencerConfig(chain_id=1, batch_rows_max=3)":
    "field of SequencerConfig was 'batch_rows_max', expected "
    "tuning=SequencerTuning(batch_rows_max=...)",
    "orderchain.ReceiverConfig(chain_id=1, naem='m')":
    "field of ReceiverConfig was 'naem', expected name",
    "orderchain.SequencerConfig(chain_id=1, gap_databases=())":
    "; ReceiverConfig has gap_databases",
    "orderchain.open_receiver(orderchain.ReceiverConfig(chain_id=1))":
    'database was not given, expected the database that keeps the checkpoint, or '
    'checkpoint="reported"',
    "orderchain.open_sequencer(orderchain.SequencerConfig(chain_id=1))":
    "database was not given, expected a URL, or a DatabaseConfig",
    "orderchain.StartAt('end', 3)": "start_at was 'at and after_id', expected one of 'beginning', "
    "'end', after_id=ID, time=DATETIME",
    "outbox.ConsumerConfig(name='c', topics=['t'], kafka='h:1', database='postgresql://d', "
    "start_at=outbox.StartAt(after_id=3))":
    "start_at was 'after_id=3', expected 'beginning', 'end' or time=DATETIME: records of a topic "
    "have no id",
    "orderchain.StartAt.parse('yesterday')":
    "start_at was 'yesterday', expected beginning, end, an id, or a time such as "
    "2026-01-31T09:30Z",
}  # fmt: skip
"""What a newcomer gets wrong, and the end of the line that he is shown."""


@pytest.mark.parametrize("line", LINES)
def test_line_of_a_newcomer_works(line: str) -> None:
    exec(line)  # noqa: S102


@pytest.mark.parametrize("line", REFUSALS)
def test_refusal_names_the_remedy(line: str) -> None:
    with pytest.raises(errors.SettingError) as refused:
        eval(line)  # noqa: S307
    assert str(refused.value).endswith(REFUSALS[line])


def test_pages_and_examples_import_from_the_doors_alone() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "examples").glob("*.py")]
    doors = "orderchain|orderchain.errors|orderchain.testing|orderchain.spark|outbox|outbox.testing"
    imports = re.compile(r"^ *(?:from|import) ([\w.]+)", re.MULTILINE)
    ours = {"orderchain", *PRODUCT}
    deep = {
        (page.name, name)
        for page in pages
        for name in imports.findall(page.read_text(encoding="utf-8"))
        if name.partition(".")[0] in ours and name not in doors.split("|")
    }
    assert deep == set()


def test_each_name_leads_to_what_it_names() -> None:
    assert len(orderchain.__all__) <= 36
    assert set(orderchain.__all__) <= set(dir(orderchain))
    for name in orderchain.__all__:
        assert getattr(orderchain, name).__name__.rpartition(".")[2] == name


def test_type_checkers_see_the_same_names_in_the_same_modules() -> None:
    tree = ast.parse((ROOT / "orderchain" / "__init__.py").read_text(encoding="utf-8"))
    (block,) = [
        node
        for node in tree.body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    typed = {
        alias.asname: node.module
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname == alias.name  # anything else is not handed on to users
    }
    assert typed == orderchain._MODULE_OF


@pytest.mark.parametrize(
    ("program", "imported"),
    [
        ("import orderchain", ["orderchain"]),
        ("from orderchain import open_sequencer, KafkaConfig, errors, Run", None),
    ],
)
def test_import_of_the_door_imports_nothing_else(program: str, imported: list[str] | None) -> None:
    done = run(
        f"import sys; before = set(sys.modules); {program}\n"
        "new = sorted(set(sys.modules) - before)\n"
        "parts = 'matcher_receiver', 'gapfill', 'outbox', 'chain_verifier', 'click', 'pyspark'\n"
        "print([part for part in parts if part in new], new)"
    )
    assert done.stdout.startswith(f"[] {imported or '['}"), done.stderr


def test_name_that_is_not_there_is_an_import_error() -> None:
    with pytest.raises(ImportError, match="cannot import name 'open_sequenser'"):
        exec("from orderchain import open_sequenser")  # noqa: S102
