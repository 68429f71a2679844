"""The DAG of `deploy/airflow`, loaded by a real Airflow in an environment of its own."""

import json
import shlex
import subprocess
import venv
from pathlib import Path

import pytest

from tests.command_lines import refusal_of
from tests.programs import output_of
from tests.sources import ROOT

DAG = ROOT / "deploy" / "airflow" / "verify_chains.py"
TASKS = {"verify_new_rows": ["new_rows"], "verify_everything": ["chains", "table"]}
LOAD = f"""
import json
from airflow.dag_processing.dagbag import DagBag
bag = DagBag(dag_folder={str(DAG)!r})
assert not bag.import_errors, bag.import_errors
# A finding of one task must not skip another.
assert not any(task.downstream_task_ids for dag in bag.dags.values() for task in dag.tasks)
print(json.dumps({{
    name: {{task.task_id: task.bash_command for task in dag.tasks}}
    for name, dag in bag.dags.items()
}}))
"""


@pytest.mark.timeout(1800)
def test_dag_is_loaded_and_chainctl_takes_its_commands(tmp_path: Path) -> None:
    home = tmp_path / "airflow"
    venv.create(home, with_pip=True)
    python = home / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", "apache-airflow>=3,<4"], check=True)
    settings = {"AIRFLOW_HOME": str(tmp_path), "PATH": "", "AIRFLOW__CORE__LOAD_EXAMPLES": "False"}
    shown = output_of(python, "-c", LOAD, env=settings)
    found = json.loads(shown.splitlines()[-1])
    assert {name: list(tasks) for name, tasks in found.items()} == TASKS
    for tasks in found.values():
        for command in tasks.values():
            program, *words = shlex.split(command)
            assert program == "chainctl"
            assert refusal_of(words) is None, command
