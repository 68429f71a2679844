"""A process of a benchmark that tells its job, and what every user can read of its command line."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import msgspec

from benchmarks.parts.impaired import SequencingJob
from benchmarks.processes import job_of, say

if __name__ == "__main__":
    job = job_of(SequencingJob)
    if sys.argv[1] == "fail":
        sys.exit("no more")
    say(b"some talk of a library")
    say(b"ready")
    if sys.argv[1] == "wait":
        signal.pause()
    shown = Path("/proc/self/cmdline").read_bytes().decode()
    say(msgspec.json.encode([job, shown]))
