"""Does the check grow with the chain as a scan does, in memory that stays as it is?

Verifies chains of two lengths as Parquet on two executors of one core and 2 GB each, by turns, each
length in a driver of its own. What Spark spilled, and the most that each heap held, is read from
its event log; what the driver's two processes held, from the system.

    python -m benchmarks.spark_scale [--short 10000000] [--long 100000000] [--repeats 5]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from benchmarks.arms import ratio, spread
from benchmarks.ends import RunFailed
from benchmarks.host import RESULTS, describe_host
from benchmarks.spark_check import Bench
from benchmarks.spark_data import seconds_of, spark_with, write_rows

if TYPE_CHECKING:
    from collections.abc import Iterator

CHECKS: Final = 2
"""Checks in one driver: the first one is warm-up, the last one is the figure."""

EXECUTORS: Final = "local-cluster[2,1,2048]"
SETTINGS: Final = {
    "spark.executor.memory": "2g",
    "spark.eventLog.enabled": "true",
    "spark.eventLog.rolling.enabled": "false",
    "spark.eventLog.compress": "false",
    "spark.eventLog.logStageExecutorMetrics": "true",
    "spark.executor.metrics.pollingInterval": "100",
    # The driver reports its own heap as often as its executors send heartbeats.
    "spark.executor.heartbeatInterval": "1s",
}
_MIB: Final = 2**20


def one_driver(path: Path, rows: int, log: Path) -> dict[str, float]:
    """Check `rows` rows, and return seconds and memory."""
    settings = SETTINGS | {"spark.eventLog.dir": log.as_uri()}
    with spark_with(settings, EXECUTORS, driver_memory="1g") as spark:
        bench = Bench(spark, path, rows)
        seconds = [seconds_of(bench.check) for _ in range(CHECKS)]
        scans = [seconds_of(bench.scan) for _ in range(CHECKS)]
        java: Any = spark.sparkContext._gateway
        memory = {"python": _peak_mib(os.getpid()), "java": _peak_mib(java.proc.pid)}
    return {
        "seconds": seconds[-1],
        "scan_seconds": scans[-1],
        "driver_python_peak_mib": memory["python"],
        "driver_java_peak_mib": memory["java"],
        **_of_log(log),
    }


def _peak_mib(process_id: int) -> float:
    """Return the most resident memory that a process has had."""
    for line in Path(f"/proc/{process_id}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise RunFailed(f"the system does not say what process {process_id} held")


def _of_log(folder: Path) -> dict[str, float]:
    """Return what was spilled in all, and the highest heap of driver and executors."""
    spilled = tasks = 0
    heaps = {"driver": 0, "executor": 0}
    for event in _events(folder):
        if event["Event"] == "SparkListenerTaskEnd":
            metrics = event["Task Metrics"]
            spilled += metrics["Memory Bytes Spilled"] + metrics["Disk Bytes Spilled"]
            tasks += 1
        if event["Event"] == "SparkListenerStageExecutorMetrics":
            who = "driver" if event["Executor ID"] == "driver" else "executor"
            heaps[who] = max(heaps[who], event["Executor Metrics"]["JVMHeapMemory"])
    if not tasks or not all(heaps.values()):
        raise RunFailed(f"the event log in {folder} tells of {tasks} tasks, heaps {heaps}")
    return {
        "spilled_bytes": spilled,
        "driver_heap_peak_mib": heaps["driver"] / _MIB,
        "executor_heap_peak_mib": heaps["executor"] / _MIB,
    }


def _events(folder: Path) -> Iterator[dict[str, Any]]:
    for path in folder.glob("[!.]*"):  # the others are checksums
        with path.open() as file:
            yield from map(json.loads, file)


def in_a_driver(path: Path, rows: int) -> dict[str, float]:
    """Run `one_driver` in a process of its own. Raises RunFailed."""
    with tempfile.TemporaryDirectory(prefix="orderchain-events-") as folder:
        log = Path(folder) / "log"
        log.mkdir()
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.spark_scale", "--driver", path, str(rows), log],
            # Otherwise the executors keep their files in the folder of Spark itself.
            env={**os.environ, "SPARK_WORKER_DIR": f"{folder}/work"},
            stdout=subprocess.PIPE,
            check=False,
        )
    if done.returncode:
        raise RunFailed(f"a driver for {rows} rows ended with {done.returncode}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure(paths: dict[int, Path], repeats: int) -> dict[str, Any]:
    """Run the lengths by turns, and return the spread of every figure."""
    found: dict[int, list[dict[str, float]]] = {rows: [] for rows in paths}
    for _ in range(repeats):
        for rows, path in paths.items():
            found[rows].append(in_a_driver(path, rows))
            print(rows, {name: round(value, 2) for name, value in found[rows][-1].items()})
            sys.stdout.flush()
    short, long = (str(rows) for rows in sorted(paths))
    by_name: dict[str, dict[str, list[float]]] = {
        name: {str(rows): [line[name] for line in lines] for rows, lines in found.items()}
        for name in found[min(found)][0]
    }
    return {
        "figures": {
            name: {rows: spread(values) for rows, values in figures.items()}
            for name, figures in by_name.items()
        },
        "long_to_short": {
            name: ratio(by_name[name], long, short) for name in by_name if name != "spilled_bytes"
        },
    }


def main() -> None:
    """Measure, print, and add a line to the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--short", type=int, default=10_000_000)
    parser.add_argument("--long", type=int, default=100_000_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--data", type=Path, help="folder of the Parquet, which is kept")
    parser.add_argument("--driver", nargs=3, metavar=("PATH", "ROWS", "LOG"))
    parser.add_argument("--dry", action="store_true", help="print only")
    arguments = parser.parse_args()
    if arguments.driver:
        path, rows, log = arguments.driver
        print(json.dumps(one_driver(Path(path), int(rows), Path(log))))
        return
    with tempfile.TemporaryDirectory(prefix="orderchain-bench-") as folder:
        data = arguments.data or Path(folder)
        lengths = (arguments.short, arguments.long)
        paths = {rows: write_rows(data, rows) for rows in lengths}
        measured = measure(paths, arguments.repeats)
    result = {
        "benchmark": "spark_scale",
        "host": describe_host(),
        "repeats": arguments.repeats,
        "executors": "2 of 1 core and 2 GB",
        **measured,
    }
    print(msgspec.json.format(msgspec.json.encode(result), indent=1).decode())
    if arguments.dry:
        return
    RESULTS.mkdir(exist_ok=True)
    with (RESULTS / "spark_scale.jsonl").open("ab") as file:
        file.write(msgspec.json.encode(result) + b"\n")


if __name__ == "__main__":
    main()
