"""A process of a benchmark that shows its arguments, and what all can read of its command line."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.chains import Site
from benchmarks.processes import say, serve


async def tell(site: Site, chain_id: int) -> dict[str, Any]:
    say(b"some talk of a library")
    say(b"ready")
    shown = Path("/proc/self/cmdline").read_bytes().decode()  # noqa: ASYNC240
    return {"site": msgspec.to_builtins(site), "chain_id": chain_id, "shown": shown}


async def fail(site: Site, chain_id: int) -> None:
    sys.exit("no more")


async def wait(site: Site, chain_id: int) -> None:
    say(b"ready")
    signal.pause()


if __name__ == "__main__":
    serve(tell, fail, wait)
