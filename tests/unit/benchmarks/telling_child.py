"""A process of a benchmark that tells its job, and what every user can read of its command line."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from benchmarks.children import job_of
from benchmarks.sequencing import SequencingJob

if __name__ == "__main__":
    job = job_of(SequencingJob)
    shown = Path("/proc/self/cmdline").read_bytes().decode()
    sys.stdout.buffer.write(msgspec.json.encode([job, shown]) + b"\n")
