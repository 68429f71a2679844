"""The front door: its names, what they cost, and what it says when one is not to be had."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import orderchain

ROOT = Path(__file__).parents[3]


def run(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def test_each_of_thirty_names_leads_to_what_it_names() -> None:
    assert len(orderchain.__all__) <= 30
    assert set(orderchain.__all__) <= set(dir(orderchain))
    for name in orderchain.__all__:
        assert getattr(orderchain, name).__name__.removeprefix("chain_kernel.") == name


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
