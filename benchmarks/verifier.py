"""How long does `chainctl verify` take, as an auditor calls it: Spark started and stopped?"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from benchmarks.chains import address_of, empty_chain, make_chain
from benchmarks.ends import RunFailed
from benchmarks.load import Load
from benchmarks.question import Arm, Figures, Line, Scope
from benchmarks.rivals.engine import OpenSink, sequencer_of, submit_all
from benchmarks.workload import order_batches

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.chains import Site

TITLE = "The verifier"

LENGTHS = (100_000, 1_000_000, 10_000_000)
REPEATS_MAX = 3
_ROWS_PER_SECOND = 60_000
_SPARK_SECONDS = 15.0
_SECONDS_MAX = 900.0
_AT_ONCE = 20_000


def arms(scope: Scope) -> list[Arm]:
    """Return a chain of each length."""
    return [
        Arm(
            name=f"{rows} rows",
            settings={"rows": rows},
            seconds=_SPARK_SECONDS + rows / _ROWS_PER_SECOND,
            repeats_max=REPEATS_MAX,
        )
        for rows in (LENGTHS[:1] if scope.is_quick else LENGTHS)
    ]


async def run(site: Site, arm: Arm, earlier: Sequence[Line]) -> Figures:
    """Fill a chain, and verify it. Raises RunFailed unless the verdict is clean."""
    rows = int(arm.settings["rows"])
    chain_id = await make_chain(site)
    try:
        await _fill(site, chain_id, rows)
        began = time.perf_counter()
        report = await _verify(site, chain_id)
        seconds = time.perf_counter() - began
    finally:
        await empty_chain(site, chain_id)
    return {"rows": rows, "verify_seconds": seconds, "rows_per_second": rows / seconds, **report}


async def _fill(site: Site, chain_id: int, rows: int) -> None:
    load = Load(rival="engine", orders=rows, batch_rows=5_000)
    async with sequencer_of(site, chain_id, load, sink=OpenSink()) as sequencer:
        batches = []
        for batch in order_batches(rows, load.batch_rows, payload_bytes=load.payload_bytes):
            batches.append(batch)
            if len(batches) * load.batch_rows >= _AT_ONCE:
                await submit_all(sequencer, batches)
                batches = []
        await submit_all(sequencer, batches)


async def _verify(site: Site, chain_id: int) -> dict[str, float]:
    """Run the command; return the seconds that it reports of itself, if it does."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "chainctl", "verify", "--json"),
        *("--chain", str(chain_id), "--source", "database"),
        env={
            **os.environ,
            "CHAINCTL_DATABASE": address_of(site.admin),
            "CHAINCTL_AUDIT_DATABASE": address_of(site.auditor),
        },
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(_SECONDS_MAX):
            out, err = await process.communicate()
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    if process.returncode:
        last = (err or out).decode(errors="replace").strip().rpartition("\n")[2]
        raise RunFailed(f"verify ended with {process.returncode}: {last}")
    seconds = json.loads(out).get("seconds")
    return {"scan_seconds": float(seconds)} if seconds is not None else {}
