"""Errors of Spark and Java, turned into what a caller can act on."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException

from chain_kernel import errors
from chain_kernel.errors import (
    InputError,
    OrderchainError,
    OrderError,
    SettingError,
    SourceBroken,
)
from chain_kernel.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterator


SPARK_ERRORS: Final = (PySparkException, Py4JError)
"""Errors that a call to Spark raises."""

_CAUSES_MAX: Final = 20
"""Java's chains of causes are short; a circular one must end too."""

_CAUSED_BY: Final = re.compile(r"^(?:Caused by: )?([\w.$]+): (.*)$", re.MULTILINE)
"""A cause in Java's words, as a server of Connect sends them."""

_PYTHON_ENDS: Final = re.compile(
    r"^.*Traceback \(most recent call last\):\n(?:[ \t].*\n|\n)*(\S.*)$", re.MULTILINE
)
"""The last line of a traceback from a Python worker: the error."""
_NO_REASON: Final = re.compile(r".*reason:\s*\n")
"""A first line that leaves the reason to the trace below it: of a stage that was tried again."""
_REFUSAL: Final = re.compile(r"(.+?) was (.+), expected (.+)")
_NO_MODULE: Final = re.compile("No module named '([^']+)'")
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
def refusing() -> Iterator[None]:
    """Raise InputError or ModuleNotFoundError where a Python worker has: a fold cannot go on."""
    try:
        yield
    except SPARK_ERRORS as error:
        ends = _PYTHON_ENDS.findall(_innermost(error).strip())
        kind, _, text = (ends[-1] if ends else "").partition(": ")
        if kind == ModuleNotFoundError.__name__:
            missing = _NO_MODULE.search(text)
            raise ModuleNotFoundError(text, name=missing[1] if missing else None) from error
        found = _REFUSAL.fullmatch(text)
        if found is None or not _is_refusal(kind):
            raise
        field, value, expected = found.groups()
        refused = InputError(field, value, expected)
        refused.args = (text,)
        raise refused from error


def _is_refusal(kind: str) -> bool:
    """Return whether a worker names an error that a fold may raise to refuse what it is given.

    One that refuses us a connection is of the source: it broke off.
    """
    found = getattr(errors, kind.rpartition(".")[2], None)
    return isinstance(found, type) and issubclass(found, (InputError, OrderError, SettingError))


def spark_reason(error: BaseException) -> str:
    """Return the innermost reason in one line, without Spark's plans and Java's traces."""
    text = _innermost(error).strip()
    if missing := _NO_PROGRAM.search(str(error)):
        text = f"PYSPARK_PYTHON is {missing[1]}, which Spark's workers cannot run"
    elif ends := _PYTHON_ENDS.findall(text):
        text = _PYTHON_CLASS.sub("", ends[-1])
    elif _NO_REASON.match(text) and (causes := _CAUSED_BY.findall(text)):
        text = ": ".join(causes[-1])
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
