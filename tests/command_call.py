"""Calls `chainctl` in the process of the tests, which need not start Python for it."""

import io
import logging
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from chainctl.logs import PACKAGES
from chainctl.main import main
from tests.deadlines import LONG_SECONDS


class Done:
    """How a call of `chainctl` ended."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code = code
        self.out = out
        self.err = err

    def __repr__(self) -> str:
        return f"exit code {self.code}\n--- stdout\n{self.out}\n--- stderr\n{self.err}"


def call_here(arguments: Sequence[object], settings: Mapping[str, str], folder: Path) -> Done:
    """Run `chainctl` in this process, in `folder` and with these settings alone."""
    streams = [io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2)]
    with pytest.MonkeyPatch.context() as patch, Path(os.devnull).open() as nothing:
        patch.chdir(folder)
        for name in [name for name in os.environ if name.startswith("CHAINCTL_")]:
            patch.delenv(name)
        for name, value in settings.items():
            patch.setenv(name, value)
        patch.setattr(sys, "stdin", nothing)
        patch.setattr(sys, "stdout", streams[0])
        patch.setattr(sys, "stderr", streams[1])
        # It is for a process that has nothing but the command in it.
        patch.setattr("chainctl.event_loop.calm_collector", lambda: None)
        # How often these come says how loaded this machine is.
        patch.setattr("chainctl.output.LINE_SECONDS", LONG_SECONDS)
        with logging_as_before():
            code = main([str(argument) for argument in arguments])
    out, err = (stream.buffer.getvalue().decode() for stream in streams)
    return Done(code, out, err)


@contextmanager
def logging_as_before() -> Iterator[None]:
    """Commands set logging up for a process of their own; the tests share one."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    levels = {name: logging.getLogger(name).level for name in PACKAGES}
    try:
        yield
    finally:
        root.handlers[:], root.level = handlers, level
        for name, own in levels.items():
            logging.getLogger(name).setLevel(own)
