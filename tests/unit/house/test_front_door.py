"""The front door: its names, what they cost, and what it says when one is not to be had."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import orderchain
import orderchain.errors
import outbox.errors
from orderchain.text import not_installed

ROOT = Path(__file__).parents[3]

NAMES = {
    # sequencing
    "open_sequencer", "Sequencer", "SequencerConfig", "SequencerStats", "Order", "Ack", "Refusal",
    "TopicIntake", "TopicIntakeConfig",
    # receiving
    "open_receiver", "Receiver", "ReceiverConfig", "ReceiverStats", "StartAt", "State",
    "FileSnapshotStore", "Snapshot", "Event", "Run", "Mark", "Gap",
    # messages
    "Relay", "RelayConfig", "Consumer", "ConsumerConfig", "ConsumerStats", "Delivery",
    "ConsumeStart", "StartFrom", "move_start",
    "Destination", "Message", "Refused", "RetryLevels", "draw_message_ids", "save_destinations",
    # verifying
    "verify", "VerifyRequest", "Report", "DatabaseSource", "TopicSource", "JournalSource",
    "ParquetSource",
    # monitoring
    "Monitor", "MonitoredPart", "Sample", "LagLimits",
    # servers and process
    "KafkaConfig", "DatabaseConfig", "calm_collector",
}  # fmt: skip
"""Beside every error."""


def errors_of(module: object) -> set[str]:
    return {
        name
        for name, value in vars(module).items()
        if isinstance(value, type)
        and issubclass(value, orderchain.errors.OrderchainError)
        and value.__module__ == module.__name__  # type: ignore[attr-defined]
    }


ERRORS = errors_of(orderchain.errors) | errors_of(outbox.errors)


def run(program: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a program that finds the modules in `folder` before all others, as python FILE does."""
    first = f"import sys; sys.path.insert(0, {str(folder)!r})\n" if folder else ""
    return subprocess.run(
        [sys.executable, "-c", first + program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def test_names_of_the_door_are_these() -> None:
    assert set(orderchain.__all__) == NAMES | ERRORS
    assert len(orderchain.__all__) == len(set(orderchain.__all__))
    assert set(orderchain.__all__) <= set(dir(orderchain))


def test_each_name_leads_to_what_it_names() -> None:
    for name in sorted(NAMES | ERRORS):
        found = getattr(orderchain, name)
        assert found.__name__ == name
        assert getattr(orderchain, name) is found


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


def test_import_of_the_door_imports_nothing_else() -> None:
    done = run("import sys; before = set(sys.modules); import orderchain\n"
               "print(sorted(set(sys.modules) - before))")  # fmt: skip
    assert done.stdout == "['orderchain']\n", done.stderr


def test_name_of_one_part_imports_no_other() -> None:
    done = run(
        "import sys; from orderchain import open_sequencer, KafkaConfig, Fenced, Run\n"
        "parts = 'matcher_receiver', 'gapfill', 'outbox', 'chain_verifier', 'click', 'pyspark'\n"
        "print([part for part in parts if part in sys.modules])"
    )
    assert done.stdout == "[]\n", done.stderr


def test_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'open_sequenser'"):
        getattr(orderchain, "open_sequenser")  # noqa: B009 - a type checker knows the name is wrong
    with pytest.raises(ImportError, match="cannot import name 'open_sequenser'"):
        exec("from orderchain import open_sequenser")  # noqa: S102


@pytest.mark.parametrize(
    ("package", "name"),
    [
        ("sequencer", "open_sequencer"),
        ("matcher_receiver", "ReceiverConfig"),
        ("matcher_receiver", "open_receiver"),
        ("gapfill", "open_receiver"),
        ("outbox", "Relay"),
        ("chain_verifier", "verify"),
    ],
)
@pytest.mark.parametrize("is_folder", [False, True])
@pytest.mark.parametrize("is_loaded", [False, True])
def test_users_module_of_one_of_our_names_is_named(
    package: str, name: str, is_folder: bool, is_loaded: bool, tmp_path: Path
) -> None:
    file = tmp_path / package / "__init__.py" if is_folder else tmp_path / f"{package}.py"
    file.parent.mkdir(exist_ok=True)
    # Most often it is the very program that imports us: it must not be run a second time as ours.
    file.write_text("print('the user\\'s own')\n", encoding="utf-8")
    loading = f"import {package}\n" if is_loaded else ""
    done = run(f"{loading}from orderchain import {name}", tmp_path)
    assert done.stdout.count("the user's own") == int(is_loaded)
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith(f"ImportError: orderchain.{name} is in orderchain's package `{package}`")
    assert str(file) in last
    assert "another name" in last


def test_users_module_of_a_name_that_is_not_asked_for_is_no_business_of_ours(
    tmp_path: Path,
) -> None:
    (tmp_path / "outbox.py").write_text("", encoding="utf-8")
    done = run("from orderchain import open_receiver, Fenced", tmp_path)
    assert done.returncode == 0, done.stderr


def test_extra_that_is_missing_is_named_in_one_line(tmp_path: Path) -> None:
    hidden = "import sys; sys.modules['aiokafka'] = None\n"
    for name, extra in {"open_receiver": "receiver", "open_sequencer": "sequencer"}.items():
        done = run(f"{hidden}from orderchain import {name}", tmp_path)
        last = done.stderr.strip().splitlines()[-1]
        assert last == f"ImportError: orderchain.{name}: {not_installed('aiokafka', extra)}"
