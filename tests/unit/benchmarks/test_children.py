from __future__ import annotations

import msgspec

from benchmarks.children import Child, start_worker
from benchmarks.sequencing import SequencingJob

DSN = "postgresql://user:sesame@127.0.0.1:1/nowhere"
JOB = SequencingJob(1, DSN, "127.0.0.1:1", 1, 1)
MODULE = "tests.unit.benchmarks.telling_child"


def test_child_gets_its_job_and_shows_no_password() -> None:
    database, shown = Child(MODULE, JOB).result(list)
    assert database == DSN
    assert MODULE in shown
    assert "sesame" not in shown


async def test_worker_gets_its_job_and_shows_no_password() -> None:
    process = await start_worker(MODULE, JOB, "batched")
    out, _ = await process.communicate()
    database, shown = msgspec.json.decode(out)
    assert database == DSN
    assert "batched" in shown
    assert "sesame" not in shown
