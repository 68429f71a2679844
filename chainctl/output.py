"""stdout is data, stderr is talk.

Both may be a terminal, and much of what is written comes from others: names, keys, errors. So what
is not printable is escaped here, for every command; JSON and text for programs stay as they are.
"""

from __future__ import annotations

import errno
import os
import shlex
import shutil
import sys
import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

import click
import msgspec

from chain_kernel.text import NO_LIMIT, counted, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

DRAW_SECONDS: Final = 0.2
"""A bar is for the eye: a higher rate would only take time from the work."""

LINE_SECONDS: Final = 10.0
"""Time between two lines that take the place of a bar: a log file keeps each."""

_COMMAND_LINE: Final = "chainctl.command_line"
"""The key, in click's context, for the command line."""

_encoder: Final = msgspec.json.Encoder()

_drawing: Final = threading.Event()
"""Set while the terminal's last line is a bar."""

_talk_form: list[Callable[[str, str], str]] = []
"""The writer of a line of talk and its level; empty for plain text."""


def keep_command_line(context: click.Context, arguments: Sequence[str]) -> None:
    """Keep the command line for what the command writes about itself."""
    context.meta[_COMMAND_LINE] = shlex.join(["chainctl", *arguments])


def command_line() -> str:
    """Return the command line as it was typed, passwords included; its quotes may differ."""
    line: str = click.get_current_context().meta[_COMMAND_LINE]
    return line


def data(text: str) -> None:
    """Write one line to stdout, escaped for a terminal. Raises OSError where it cannot."""
    data_text(printable(text, NO_LIMIT))


def data_text(text: str) -> None:
    """Write ready-made lines for a program (SQL, JSON, a shell) to stdout. Raises OSError."""
    if sys.stdout is None:
        raise OSError(errno.EBADF, "stdout is closed")
    sys.stdout.write(text + "\n")


def data_json(value: object) -> None:
    """Write `value` to stdout as the one JSON document of a command; bytes become base64.

    It is an array where the command shows rows, an object where it shows one thing.
    """
    data_text(_encoder.encode(value).decode())


def data_json_line(value: object) -> None:
    """Write `value` to stdout as a line of JSON Lines, for commands whose help says so.

    At once: the next line may come an hour later.
    """
    data_text(_encoder.encode(value).decode())
    sys.stdout.flush()


def data_bytes(lines: bytes) -> None:
    """Write ready-made lines to stdout, after everything written before."""
    if sys.stdout is None:
        raise OSError(errno.EBADF, "stdout is closed")
    sys.stdout.flush()
    sys.stdout.buffer.write(lines)


def talk(text: str, level: str = "info") -> None:
    """Write one line to stderr, escaped for a terminal; never fails, nothing depends on it."""
    if sys.stderr is None:
        return  # not print(file=None): that would write among the data
    line = _talk_form[-1](text, level) if _talk_form else printable(text, NO_LIMIT)
    if _drawing.is_set():
        _draw("")
    with suppress(OSError):
        print(line, file=sys.stderr, flush=True)  # noqa: T201 - this is where talk is made


def talk_through(form: Callable[[str, str], str] | None) -> None:
    """Write talk as `form` returns it for a text and its level, which is one printable line.

    None is for plain text, without the level.
    """
    _talk_form[:] = [] if form is None else [form]


def table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Write a table to stdout: columns aligned, numbers to the right, no colours."""
    cells = [[_cell(value) for value in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(headers, *cells, strict=True)]
    rightward = [
        bool(rows) and all(isinstance(row[index], int | float) for row in rows)
        for index in range(len(headers))
    ]
    for line in ([header.upper() for header in headers], *cells):
        parts = [
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(line, widths, rightward, strict=True)
        ]
        data("  ".join(parts).rstrip())


def rate(count: int, noun: str, seconds: float) -> str:
    """Return `count` and what it is per second, for talk: `200,000 rows in 1.5 s (133,333/s)`."""
    text = counted(count, noun)
    if count == 0 or seconds <= 0:
        return text
    return f"{text} in {seconds:.1f} s ({count / seconds:,.0f}/s)"


class Stopwatch:
    """Measures how long a piece of work took."""

    def __init__(self) -> None:
        self._started_ns = time.monotonic_ns()

    @property
    def seconds(self) -> float:
        """Seconds since it was made."""
        return (time.monotonic_ns() - self._started_ns) / 1e9


class ProgressBar:
    """Shows the progress of a piece of work.

    A thread shows it, since the work may block: on a terminal a line that is drawn again and again,
    else a new line now and then.
    """

    def __init__(self, label: str, total: float | None) -> None:
        self._label = label
        self._total = total
        self._done = 0.0
        self._note = ""
        self._stopwatch = Stopwatch()

    def advance(self, amount: float) -> None:
        """Add `amount` to what is done, in the unit of the total."""
        self._done += amount

    def move_to(self, done: float, note: str = "") -> None:
        """Set what is done, with a short note to show after the bar."""
        self._done, self._note = done, note

    def expect(self, total: float) -> None:
        """Set the total, now that it is known."""
        self._total = total

    def keep_drawing(self, ended: threading.Event) -> None:
        """Draw on the terminal until the work has ended."""
        _drawing.set()
        while not ended.wait(DRAW_SECONDS):
            part = f" ({self._done / self._total:.0%})" if self._total else ""
            line = f"{self._label}: {self._done:,.0f}{part}, {self._stopwatch.seconds:.0f} s"
            width = shutil.get_terminal_size().columns - 1
            _draw(printable(f"{line} {self._note}")[:width])
        _drawing.clear()
        _draw("")

    def keep_speaking(self, ended: threading.Event) -> None:
        """Write what is under way to the log until the work has ended."""
        while not ended.wait(LINE_SECONDS):
            what, seconds = self._note or self._label, self._stopwatch.seconds
            talk(f"chainctl: {self._label}: {what}, {seconds:.0f} s so far")


def _draw(line: str) -> None:
    with suppress(OSError):
        sys.stderr.write(f"\r\x1b[K{line}")
        sys.stderr.flush()


@contextmanager
def progress(label: str, total: float | None, *, is_awaited: bool = False) -> Iterator[ProgressBar]:
    """Show progress on stderr while the block runs; nothing where stderr is no terminal, or where
    talk has another form than text. If somebody waits for the block to end, a line every
    LINE_SECONDS is shown there.

    `total` is None when it is not known.
    """
    bar = ProgressBar(label, total)
    is_terminal = not _talk_form and sys.stderr is not None and sys.stderr.isatty()
    is_drawn = is_terminal and os.environ.get("TERM") != "dumb"
    if not (is_drawn or is_awaited):
        yield bar
        return
    ended = threading.Event()
    show = bar.keep_drawing if is_drawn else bar.keep_speaking
    thread = threading.Thread(target=show, args=(ended,), name="progress", daemon=True)
    thread.start()
    try:
        yield bar
    finally:
        ended.set()
        thread.join()


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,.1f}" if isinstance(value, float) else printable(value, NO_LIMIT)
