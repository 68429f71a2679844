"""A DAG of Airflow 3: each hour, what is new in every chain; each night, everything, and a table.

The workers have `orderchain[cli,spark,local]` and `CHAINCTL_AUDIT_DATABASE`. A task fails unless
its command ends with 0: 1 is a finding, 2 a wrong setting, 3 a source that broke off.

The table is in the catalog of a server of Spark Connect, so workers have `connect`, too. Airflow
removes the folder in which it runs a command: reports go to a folder that exists, or to a URL.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG

NEW = "chainctl verify --all-chains --source database --since-verified --actor airflow"
EVERYTHING = "chainctl verify --all-chains --source database --seals"
TABLE = (
    "chainctl verify table trades --id-column seq --key-column account "
    "--master sc://spark:15002 --findings-table trades_findings"
)

with DAG(
    "verify_new_rows",
    schedule="@hourly",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    default_args={"retries": 2, "retry_delay": timedelta(minutes=5)},
):
    BashOperator(task_id="new_rows", bash_command=NEW)

with DAG(
    "verify_everything",
    schedule="@daily",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
):
    # One does not wait for the other: a finding in the chains must not skip the table.
    BashOperator(task_id="chains", bash_command=EVERYTHING)
    BashOperator(task_id="table", bash_command=TABLE)
