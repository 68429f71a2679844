"""The callback service of the benchmark of mode 5, in a process of its own until it is killed.

python -m benchmarks.outbox_callback, the job on stdin
"""

from __future__ import annotations

import asyncio
import sys

import uvloop
from msgspec import Struct

from benchmarks.children import job_of
from orderchain.collector import calm_collector
from outbox.callback.callback_service import CallbackService
from outbox.callback.calls import HttpSenderCalls
from outbox.callback.config import CallbackConfig
from outbox.callback.intake import CallbackIntake


class SenderAddress(Struct, frozen=True):
    """How the sender is reached."""

    callback_url: str
    call_token: str


class CallbackSite(Struct, frozen=True):
    """What the process must know."""

    config: CallbackConfig
    sender: SenderAddress


async def serve(site: CallbackSite) -> None:
    """Take records in, and return confirms."""
    calls = HttpSenderCalls(lambda _: site.sender, site.config.call_seconds)
    service = CallbackService(site.config, calls)
    await service.check()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    await asyncio.gather(CallbackIntake(site.config, service).run(), service.run())


if __name__ == "__main__":
    calm_collector()
    uvloop.run(serve(job_of(CallbackSite)))
