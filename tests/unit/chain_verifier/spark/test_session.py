from __future__ import annotations

import pytest

from chain_kernel.errors import ConnectError, SettingError
from chain_verifier.spark.session import is_submitted, start_error


def test_start_error_with_connectors_that_cannot_be_fetched_names_them() -> None:
    log = "...\nException in thread main [unresolved dependency: org.postgresql#postgresql]\n\tat x"
    error = start_error(log, "gateway exited", "org.postgresql:postgresql:1")
    assert isinstance(error, ConnectError)
    assert "org.postgresql:postgresql" in str(error)


@pytest.mark.parametrize(
    ("log", "shown"),
    [("Error occurred\nModule jdk.x not found\n\n", "Module jdk.x not found"), ("", "exited")],
)
def test_start_error_with_a_java_that_fails_reports_its_last_words(log: str, shown: str) -> None:
    error = start_error(log, "exited", "")
    assert isinstance(error, SettingError)
    assert error.value == shown


def test_a_process_that_spark_submit_runs_is_known_by_its_gateway() -> None:
    assert is_submitted({"PYSPARK_GATEWAY_PORT": "40001"})
    assert not is_submitted({"PYSPARK_PYTHON": "python3", "SPARK_HOME": "/opt/spark"})
