"""The commands of the DAG in `deploy/airflow` are taken by the command line."""

from __future__ import annotations

import ast
import shlex

from tests.command_lines import refusal_of
from tests.sources import ROOT

DAG = ROOT / "deploy" / "airflow" / "verify_chains.py"


def test_commands_of_the_dag_are_taken_as_they_are() -> None:
    tree = ast.parse(DAG.read_text(encoding="utf-8"))
    commands = [
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and "chainctl" in ast.unparse(node.value)
    ]
    assert len(commands) == 3
    refusals = {text: refusal_of(shlex.split(text)[1:]) for text in commands}
    assert refusals == dict.fromkeys(commands)
