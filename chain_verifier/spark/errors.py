"""What Spark and Java raise, turned into what a caller can act on."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException

from chain_kernel.errors import (
    ConnectError,
    OrderchainError,
    SchemaError,
    SettingError,
    SourceBroken,
)
from chain_kernel.sql import AUDITOR, SCHEMA_VERSION
from chain_kernel.text import printable
from chain_verifier.spark.packages import JDBC_DRIVER, POSTGRESQL_JDBC

if TYPE_CHECKING:
    from collections.abc import Iterator

    from chain_kernel.clients.database_config import DatabaseConfig


SPARK_ERRORS: Final = (PySparkException, Py4JError)
"""What a call to Spark raises."""

_CAUSES_MAX: Final = 20
"""Java's chains of causes are short; a circular one must end too."""

_NOT_ALLOWED: Final = "42501"

_MISSING_OBJECT: Final = frozenset({"42P01", "42703", "3F000"})
"""undefined_table, undefined_column, invalid_schema_name"""

_CAUSED_BY: Final = re.compile(r"^(?:Caused by: )?([\w.$]+): (.*)$", re.MULTILINE)
"""A cause in Java's words, as a server of Connect sends them."""

_PYTHON_ENDS: Final = re.compile(
    r"^.*Traceback \(most recent call last\):\n(?:[ \t].*\n|\n)*(\S.*)$", re.MULTILINE
)
"""The last line of a traceback from a Python worker: the error."""
_NO_PROGRAM: Final = re.compile(r'Cannot run program "([^"]*)"')
_PYTHON_CLASS: Final = re.compile(r"^[\w.]+: ")


@contextmanager
def as_broken(source: str) -> Iterator[None]:
    """Raise SourceBroken for every error that Spark raises while it reads `source`."""
    try:
        yield
    except OrderchainError:
        raise
    except (*SPARK_ERRORS, OSError) as error:
        raise SourceBroken(source, spark_reason(error)) from error


@contextmanager
def at_connect(database: DatabaseConfig) -> Iterator[None]:
    """Raise ConnectError or SchemaError for what a database answers at the first contact."""
    try:
        yield
    except (*SPARK_ERRORS, OSError) as error:
        state, reason = sql_state(error), spark_reason(error)
        if reason == JDBC_DRIVER:
            raise lacks_package(POSTGRESQL_JDBC) from error
        if state in _MISSING_OBJECT:
            raise SchemaError("schema", "missing", f"version {SCHEMA_VERSION}") from error
        expected = f"to get in ({reason})"
        if state == _NOT_ALLOWED:
            expected = f"a login that is a member of {AUDITOR} (login {database.login}: {reason})"
        raise ConnectError("database", database.shown, expected) from error


def lacks_package(package: str) -> SettingError:
    """Return the error of a session that was started without what reads a source."""
    return SettingError("spark", "started without it", f"a Spark with --packages {package}")


def spark_reason(error: BaseException) -> str:
    """Return the innermost reason in one line, without Spark's plans and Java's traces."""
    text = _innermost(error).strip()
    if missing := _NO_PROGRAM.search(str(error)):
        text = f"PYSPARK_PYTHON is {missing[1]}, which Spark's workers cannot run"
    elif ends := _PYTHON_ENDS.findall(text):
        text = _PYTHON_CLASS.sub("", ends[-1])
    return printable(" ".join(text.partition("\n")[0].split()) or type(error).__name__)


def _innermost(error: BaseException) -> str:
    if causes := list(_java_causes(error)):
        return str(causes[-1].getMessage() or causes[-1].toString())
    trace = _sent_trace(error)
    sent = _CAUSED_BY.findall(trace)
    if sent and "Traceback (most" not in trace:
        return str(sent[-1][1])
    return trace if sent else str(error)


def _sent_trace(error: BaseException) -> str:
    """Return the trace of Java that a server of Connect has sent, or nothing."""
    if _java_exception(error) is not None or not isinstance(error, PySparkException):
        return ""
    trace = getattr(error, "getStackTrace", None)
    return (trace() or "") if trace is not None else ""


def sql_state(error: BaseException) -> str | None:
    """Return the SQLSTATE of the first SQLException among the causes."""
    for cause in _java_causes(error):
        if hasattr_java(cause, "getSQLState"):
            return str(cause.getSQLState())
    return None


def hasattr_java(cause: Any, method: str) -> bool:  # noqa: ANN401 - a Java object
    """Return whether a Java object has a method; py4j itself finds out only when it is called."""
    return any(found.getName() == method for found in cause.getClass().getMethods())


def _java_causes(error: BaseException) -> Iterator[Any]:
    cause = _java_exception(error)
    for _ in range(_CAUSES_MAX):
        if cause is None:
            return
        yield cause
        cause = cause.getCause()


def _java_exception(error: BaseException) -> Any:  # noqa: ANN401 - a Java object
    if isinstance(error, Py4JJavaError):
        return error.java_exception
    return getattr(error, "_origin", None)
