"""What the packages log, as lines on stderr."""

from __future__ import annotations

import logging
import sys
from copy import copy
from typing import TYPE_CHECKING, Final

from chainctl.exits import hide_secrets
from orderchain.printable import printable

if TYPE_CHECKING:
    from chainctl.settings import Settings

PACKAGES: Final = (
    "orderchain",
    "sequencer",
    "matcher_receiver",
    "gapfill",
    "outbox",
    "chain_verifier",
    "chainctl",
    "local_stack",
)


def set_up_logging(settings: Settings) -> None:
    """Send our packages' log lines of `settings.log_level` and above to stderr.

    The libraries' own logs are shown with `debug` only: what they complain of reaches the user as
    an error of ours, in one line and without a traceback.
    """
    is_debug = settings.log_level == "debug"
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_OneLine(settings.secrets(), with_tracebacks=is_debug))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.DEBUG if is_debug else logging.CRITICAL + 1)
    for name in PACKAGES:
        logging.getLogger(name).setLevel(settings.log_level.upper())


LINE_CHARACTERS_MAX: Final = 4_000
"""Of a record's message: longer than any of ours, so only foreign text can be cut."""

_TRACEBACK_INDENT: Final = "  "
"""Before each line of a traceback: none of them can look like a record."""


class _OneLine(logging.Formatter):
    """One printable line per record, without passwords; tracebacks only when asked for.

    Our packages escape foreign text where they log it. This is the second line: it holds for what
    they forgot, and for what libraries log.
    """

    def __init__(self, secrets: tuple[str, ...], *, with_tracebacks: bool) -> None:
        super().__init__("chainctl: %(levelname)s: %(message)s")
        self._secrets = secrets
        self._with_tracebacks = with_tracebacks

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of `record`."""
        message = hide_secrets(record.getMessage(), self._secrets)
        record = copy(record)  # other handlers see it too
        record.msg, record.args = printable(message, LINE_CHARACTERS_MAX), None
        if not self._with_tracebacks:
            record.exc_info = record.exc_text = record.stack_info = None
            record.levelname = record.levelname.lower()
        first, *rest = hide_secrets(super().format(record), self._secrets).split("\n")
        return "\n".join([first, *(_TRACEBACK_INDENT + printable(line) for line in rest)])
