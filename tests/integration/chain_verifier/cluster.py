"""A real standalone Spark cluster on loopback: one master and two workers, from PySpark's wheel."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyspark

from local_stack.process import free_port

_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
SUBMIT = Path(pyspark.__file__).parent / "bin" / "spark-submit"

WORKERS = 2


def spark_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of every process of the cluster, the driver's too: all on loopback.

    Nothing leads to this checkout: the package must be where the interpreter looks for it anyway.
    """
    kept = {name: value for name, value in environ.items() if not name.startswith("SPARK_")}
    kept.pop("PYTHONPATH", None)
    return kept | {
        "SPARK_LOCAL_IP": "127.0.0.1",
        # A dozen Java processes for a few seconds each: the quick compiler is all that pays, and
        # Spark's classes need no check.
        "JAVA_TOOL_OPTIONS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
        " -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote",
    }


def on_small_disk(folder: Path) -> tuple[str, ...]:
    """The start of a command that sees `folder` as a file system of six megabytes of its own."""
    mount = f'mount -t tmpfs -o size=6m none {folder} && exec "$@"'
    return ("unshare", "-rm", "sh", "-c", mount, "sh")


class _Daemon:
    """One process of the cluster, whose log goes to a file."""

    def __init__(self, name: str, log: Path, ready: str, *command: object, **settings: str) -> None:
        self.name = name
        self.log = log
        self._ready = ready
        self._is_ready = threading.Event()
        self._process = subprocess.Popen(
            [*map(str, command)],
            env=spark_environment(os.environ) | {"SPARK_DAEMON_MEMORY": "256m"} | settings,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        self._reader = threading.Thread(target=self._read, name=name)
        self._reader.start()

    def _read(self) -> None:
        lines: Any = self._process.stdout
        with self.log.open("w") as log:
            for line in lines:
                log.write(line)
                log.flush()
                if self._ready in line:
                    self._is_ready.set()
        self._is_ready.set()  # it has ended: no need to wait any longer

    def wait(self) -> None:
        """Wait until it is ready. Raises RuntimeError with its log when it is not."""
        self._is_ready.wait()
        if self._process.poll() is not None or self._ready not in self.log.read_text():
            raise RuntimeError(f"{self.name} did not start:\n{self.log.read_text()[-2_000:]}")

    def kill(self) -> None:
        """Kill this process, as a machine that is gone."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """End this process, and no other: a worker ends the executors that it has started."""
        self._process.terminate()
        try:
            self._process.wait(20.0)  # it may not listen
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()
        if self._process.stdout is not None:
            self._process.stdout.close()


class ConnectServer:
    """A server of Spark Connect on loopback; `remote` is its URL. Started with `with`."""

    def __init__(self, folder: Path, master: str, python: str = sys.executable) -> None:
        """`python` is what its workers are."""
        port = free_port()
        self.remote = f"sc://127.0.0.1:{port}"
        self._log = folder / "connect.log"
        self._python = python
        settings = (
            f"spark.connect.grpc.binding.port={port}", "spark.ui.enabled=false",
            "spark.driver.bindAddress=127.0.0.1", "spark.driver.host=127.0.0.1",
            f"spark.sql.warehouse.dir={folder / 'warehouse'}",
        )  # fmt: skip
        self._command = (
            *(_CLASS, "org.apache.spark.deploy.SparkSubmit", "--master", master),
            *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer"),
            *(word for each in settings for word in ("--conf", each)),
            "spark-internal",
        )

    def __enter__(self) -> ConnectServer:
        settings = {"SPARK_DAEMON_MEMORY": "1g", "PYSPARK_PYTHON": self._python}
        ready = "Spark Connect server started"
        self._server = _Daemon("connect", self._log, ready, *self._command, **settings)
        try:
            self._server.wait()
        except BaseException:
            self._server.stop()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._server.stop()


class SparkCluster:
    """Started with `with`; `master` is its URL."""

    def __init__(self, folder: Path, *, small: Path | None = None) -> None:
        """`small`: each worker has its scratch files there, on a disk of a few megabytes."""
        self._folder = folder
        self._small = small
        self._daemons: list[_Daemon] = []
        port = free_port()
        self._ports = (port, free_port([port]))
        self.master = f"spark://127.0.0.1:{port}"

    def __enter__(self) -> SparkCluster:
        try:
            self._start_master()
            self._start_workers()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def _start_master(self) -> None:
        port, ui_port = self._ports
        self._start(
            *("master", "I have been elected leader", "org.apache.spark.deploy.master.Master"),
            *("--host", "127.0.0.1", "--port", port, "--webui-port", ui_port),
        )
        self._daemons[0].wait()

    def _start_workers(self) -> None:
        """Start both at once; each offers one core and the memory of one executor.

        Each is a host of its own: Spark reads what another executor of one host has written from
        its disk, which it does not see where workers have small disks.
        """
        for number in range(WORKERS):
            host = f"127.0.0.{number + 1}"
            self._start(
                f"worker-{number}",
                *("Successfully registered with master", "org.apache.spark.deploy.worker.Worker"),
                *("--host", host, "--webui-port", 0, "--cores", 1, "--memory", "1g"),
                *("--work-dir", self._work(number), self.master),
            )
        for worker in self._daemons[1:]:
            worker.wait()

    def worker_of(self, folder: str) -> int:
        """The number of the worker whose executor works in `folder`."""
        return next(n for n in range(WORKERS) if Path(folder).is_relative_to(self._work(n)))

    def kill_worker(self, number: int) -> None:
        """Kill a worker; its executor finds out, and ends."""
        self._daemons[1 + number].kill()

    def _start(self, name: str, ready: str, *arguments: object) -> None:
        log = self._folder / f"{name}.log"
        start: tuple[object, ...] = (_CLASS,)
        settings: dict[str, str] = {}
        if self._small is not None and name != "master":
            start = (*on_small_disk(self._small), *start)
            settings["SPARK_LOCAL_DIRS"] = str(self._small)
        self._daemons.append(_Daemon(name, log, ready, *start, *arguments, **settings))

    def _work(self, number: int) -> Path:
        return self._folder / f"work-{number}"

    def executors(self, number: int) -> list[Path]:
        """The logs of the executors that worker `number` has started, the oldest first."""
        return sorted(self._work(number).glob("app-*/*/stderr"))

    def stop(self) -> None:
        """Stop the workers, then the master."""
        for daemon in reversed(self._daemons):
            daemon.stop()
        self._daemons = []
