"""Lines of the log as events: a test waits until one comes."""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from tests.deadlines import deadline


class LogLines(logging.Handler):
    """Keeps what is logged in this loop's thread, and wakes who waits for it."""

    def __init__(self, level: int = logging.WARNING) -> None:
        super().__init__(level)
        self.lines: Final[list[str]] = []
        self._some = asyncio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())
        self._some.set()

    def naming(self, *words: str) -> list[str]:
        """Return the lines so far that have all of `words`."""
        return [line for line in self.lines if all(word in line for word in words)]

    async def until(self, *words: str) -> str:
        """Return the first line that has all of `words`, once there is one."""
        try:
            async with deadline():
                while not (found := self.naming(*words)):
                    self._some.clear()
                    await self._some.wait()
        except TimeoutError:
            raise AssertionError(f"no line has {words}; there are: {self.lines}") from None
        return found[0]


@contextmanager
def log_lines(logger: str = "") -> Iterator[LogLines]:
    """Keep what `logger` and those below it log during the block."""
    handler, source = LogLines(), logging.getLogger(logger)
    source.addHandler(handler)
    try:
        yield handler
    finally:
        source.removeHandler(handler)
