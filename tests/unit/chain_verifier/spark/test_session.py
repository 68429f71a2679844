from pathlib import Path

import pyspark
import pytest
from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import IllegalArgumentException, PySparkException

from chain_kernel.errors import SettingError
from chain_verifier.spark.errors import spark_reason
from chain_verifier.spark.session import (
    MODULE,
    is_submitted,
    open_session,
    require_spark,
    start_error,
)


@pytest.mark.parametrize(
    ("log", "environ", "field", "shown"),
    [
        (f"Error occurred\nModule {MODULE} not found\n\n", {}, "java", "Error occurred"),
        ("gone\n", {"SPARK_CONF_DIR": "/x"}, "SPARK_CONF_DIR", "gone"),
        ("Picked up JAVA_TOOL_OPTIONS: -Da=ERROR -Dpassword=SESAME\n"
         "NOTE: Picked up JDK_JAVA_OPTIONS: -Da=Error -Dpassword=SESAME\n",
         {"JAVA_TOOL_OPTIONS": "x"}, "JAVA_TOOL_OPTIONS", "exited"),
        ("NOTE\nUnrecognized option: -Xq\nby\n", {"_JAVA_OPTIONS": "-Xq"}, "_JAVA_OPTIONS",
         "Unrecognized option: -Xq"),
        ("java.net.UnknownHostException: h", {"SPARK_LOCAL_HOSTNAME": "h"}, "host name", "h"),
        (f"WARNING: Using incubator modules: {MODULE}\nError: Unrecognized option: --x",
         {"PYSPARK_SUBMIT_ARGS": "--x"}, "PYSPARK_SUBMIT_ARGS", "Error: Unrecognized option: --x"),
        ("", {}, "spark", "exited"),
    ],
)  # fmt: skip
def test_start_error_names_what_is_wrong_and_java_only_where_it_is(
    log: str, environ: dict[str, str], field: str, shown: str
) -> None:
    error = start_error(log, "exited", environ)
    assert isinstance(error, SettingError)
    assert (error.field, error.value) == (field, shown)


@pytest.mark.parametrize(
    "environ", [{"SPARK_HOME": "/nowhere"}, {"PYSPARK_SUBMIT_ARGS": "--conf spark.secret=x"}]
)
def test_variable_that_leads_to_no_spark_is_refused_by_its_name(environ: dict[str, str]) -> None:
    (name,) = environ
    with pytest.raises(SettingError, match=f"^{name} was ") as refused:
        require_spark(environ)
    assert "secret" not in str(refused.value)
    require_spark({"SPARK_HOME": str(Path(pyspark.__file__).parent)})


def test_workers_without_a_python_name_the_variable() -> None:
    error = Py4JError('IOException: Cannot run program "/no/python": error=2, No such file')
    assert spark_reason(error) == "PYSPARK_PYTHON is /no/python, which Spark's workers cannot run"


def test_stage_that_was_tried_again_in_vain_names_its_last_reason() -> None:
    error = PySparkException(
        "Job aborted: ShuffleMapStage 1 has failed the maximum allowable number of times: 4. Most "
        "recent failure reason:\norg.apache.spark.shuffle.FetchFailedException: x\n\tat A.b\n"
        "Caused by: java.io.IOException: No space left on device\n\t... 8 more\n"
    )
    assert spark_reason(error) == "java.io.IOException: No space left on device"


def test_a_process_that_spark_submit_runs_is_known_by_its_gateway() -> None:
    assert is_submitted({"PYSPARK_GATEWAY_PORT": "40001"})
    assert not is_submitted({"PYSPARK_PYTHON": "python3", "SPARK_HOME": "/opt/spark"})


@pytest.mark.parametrize(
    "error",
    [
        IllegalArgumentException("spark.sql.x should be a number"),
        TypeError("'JavaPackage' object is not callable"),
        Py4JError("spark.sql.x"),
        FileNotFoundError("no java"),
    ],
)
def test_spark_submit_whose_spark_does_not_start_names_the_reason_and_the_version(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    monkeypatch.setattr(SparkContext, "_ensure_initialized", fail)
    monkeypatch.setattr("chain_verifier.spark.session._open_elsewhere", lambda: None)
    version = ".".join(pyspark.__version__.split(".")[:2])
    with (
        pytest.raises(SettingError, match=f"expected a Spark {version} that starts") as refused,
        open_session(None),
    ):
        pass
    assert refused.value.value == spark_reason(error)
