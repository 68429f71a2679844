"""The alert of `--http`: it fires in a real Prometheus for a process that hangs."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

from tests.integration.chainctl.conftest import Start
from tests.integration.chainctl.monitor_pages import WORKS, until_shown
from tests.prometheus import running


async def test_process_that_hangs_is_not_ready_and_its_metrics_are_old(
    start: Start, tmp_path: Path
) -> None:
    work = start(script=WORKS, stdin=-1)
    assert work.stderr is not None
    address = work.stderr.readline().split()[-1]
    await asyncio.to_thread(until_shown, f"{address}/livez", 200)
    fresh = "orderchain_metrics_age_seconds < 5"
    async with (
        running(tmp_path, address.removeprefix("http://")) as prometheus,
        prometheus.alarm("OrderchainMetricsOld", since=fresh),
    ):
        work.send_signal(signal.SIGSTOP)
        await prometheus.until_scraped("orderchain_ready == 0")
