"""Alerts about `--http`: they fire in a real Prometheus for a process that hangs, or has ended."""

import asyncio
import signal
from pathlib import Path

from tests.integration.chainctl.conftest import Start
from tests.integration.chainctl.monitor_pages import WORKS, until_shown
from tests.prometheus import running


async def test_process_that_hangs_is_not_ready_with_old_metrics_and_then_it_is_down(
    start: Start, tmp_path: Path
) -> None:
    work = start(script=WORKS, stdin=-1)
    assert work.stderr is not None
    address = work.stderr.readline().split()[-1]
    await asyncio.to_thread(until_shown, f"{address}/livez", 200)
    fresh = "orderchain_metrics_age_seconds < 5"
    async with running(tmp_path, address.removeprefix("http://")) as prometheus:
        async with prometheus.alarm("OrderchainMetricsOld", since=fresh):
            work.send_signal(signal.SIGSTOP)
            await prometheus.until_scraped("orderchain_ready == 0")
        async with prometheus.alarm("OrderchainDown"):
            work.kill()
