"""The log of a running command: its form, its bounds, and what is left out of it."""

from __future__ import annotations

import json
import logging
import sys
import time
from copy import copy
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, NamedTuple

from chain_kernel.text import printable
from chainctl.exits import hide_secrets
from chainctl.output import talk_through

if TYPE_CHECKING:
    from chainctl.settings import Settings

PACKAGES: Final = (
    "chain_kernel",
    "orderchain",
    "sequencer",
    "matcher_receiver",
    "gapfill",
    "outbox",
    "chain_verifier",
    "chainctl",
    "local_stack",
)

LINE_CHARACTERS_MAX: Final = 4_000
"""Bound of a record's message: longer than any of ours, so only foreign text can be cut."""

_TRACEBACK_INDENT: Final = "  "
"""Before each line of a traceback: none of them can look like a record."""


class Subject(NamedTuple):
    """The subject of a running command, for each of its lines; None where that is not known."""

    chain: int | None = None
    name: str | None = None

    def known(self) -> dict[str, int | str]:
        """Return what is known of it."""
        return {key: value for key, value in self._asdict().items() if value is not None}


def set_up_logging(settings: Settings, running: Subject | None = None) -> None:
    """Send our packages' log lines of `settings.log_level` and above to stderr.

    `running` is given for a command that runs long: its lines have a time, the logger and the
    subject, and they are JSON objects where `settings.log_format` says so, what it prints on
    stderr included. The libraries' own logs are shown with `debug` only: their errors reach the
    user as an error of ours, in one line and without a traceback.
    """
    is_debug = settings.log_level == "debug"
    is_json = running is not None and settings.log_format == "json"
    kind = _JsonLine if is_json else _OneLine
    formatter = kind(settings.secrets(), running, with_tracebacks=is_debug)
    if isinstance(formatter, _JsonLine):
        talk_through(formatter.talk)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.DEBUG if is_debug else logging.CRITICAL + 1)
    for name in PACKAGES:
        logging.getLogger(name).setLevel(settings.log_level.upper())


class _OneLine(logging.Formatter):
    """One printable line per record, without passwords; tracebacks only when asked for.

    It begins with `chainctl: LEVEL:`, and while a command runs long with `TIME LEVEL LOGGER chain=7
    name=n:`. Our packages escape foreign text where they log it. This is the second line of
    defence: it covers what they miss, and what libraries log.
    """

    def __init__(
        self, secrets: tuple[str, ...], running: Subject | None, *, with_tracebacks: bool
    ) -> None:
        self._known = {} if running is None else running.known()
        known = "".join(f" {key}={printable(value)}" for key, value in self._known.items())
        timed = f"%(utc)s %(level)s %(name)s{known.replace('%', '%%')}: %(message)s"
        super().__init__("chainctl: %(level)s: %(message)s" if running is None else timed)
        self._secrets = secrets
        self._with_tracebacks = with_tracebacks

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of `record`."""
        record = copy(record)  # other handlers see it too
        record.msg, record.args = self._message(record), None
        record.utc, record.level = _utc_text(record.created), record.levelname.lower()
        record.name = printable(record.name)
        if not self._with_tracebacks:
            record.exc_info = record.exc_text = record.stack_info = None
        first, *rest = hide_secrets(super().format(record), self._secrets).split("\n")
        return "\n".join([first, *(_TRACEBACK_INDENT + printable(line) for line in rest)])

    def _message(self, record: logging.LogRecord) -> str:
        return printable(hide_secrets(record.getMessage(), self._secrets), LINE_CHARACTERS_MAX)


class _JsonLine(_OneLine):
    """One JSON object per record: time, level, logger, chain and name where known, message."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of `record`; a traceback is one text in it."""
        line = self._object(record.created, record.levelname.lower(), record.name)
        line["message"] = self._message(record)
        if self._with_tracebacks and record.exc_info:
            line["traceback"] = hide_secrets(self.formatException(record.exc_info), self._secrets)
        return json.dumps(line)  # ASCII: no terminal takes a part of it for a command

    def talk(self, text: str, level: str) -> str:
        """Return the line for what a command prints for its user."""
        line = self._object(time.time(), level, "chainctl")
        return json.dumps({**line, "message": text.removeprefix("chainctl: ")})

    def _object(self, seconds: float, level: str, logger: str) -> dict[str, object]:
        return {"time": _utc_text(seconds), "level": level, "logger": logger, **self._known}


def _utc_text(seconds: float) -> str:
    """Return the time as ISO 8601 in UTC, to the millisecond."""
    text = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")
