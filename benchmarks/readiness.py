"""How an end of a run gets ready: what it made before is out of the collector's sight."""

from __future__ import annotations

import gc
import sys


def freeze() -> None:
    """Keep all that was made so far from the garbage collector, which stays on.

    Otherwise a pass over it falls into the timed part: 22 to 34 ms once in 5 s, in a process that
    has done no more than import the engine and connect.
    """
    gc.collect()
    gc.freeze()


def say(word: bytes) -> None:
    """Write a line to the benchmark's own process."""
    sys.stdout.buffer.write(word + b"\n")
    sys.stdout.buffer.flush()


def stand_ready(word: bytes) -> None:
    """Freeze, and only then write `word`: what comes after it is timed."""
    freeze()
    say(word)
