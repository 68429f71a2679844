"""The common part of PostgreSQL and Kafka: start, wait until ready, stop, and be broken on
purpose."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, Final, Self

from chain_kernel.text import reason_of
from local_stack import process as processes
from local_stack.errors import ServerFailed

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from local_stack.folders import Account
    from local_stack.process import ProcessIdentity

START_DEADLINE_S: Final = 90.0
"""Kafka is up in 3 s on two idle cores; a loaded machine may take ten times that."""

_FREEZE_DEADLINE_S: Final = 10.0
"""A thread that waits for the disk stops only after that."""

_POLL_S: Final = 0.05
_LOG_BYTES_MAX: Final = 16 * 1024 * 1024
"""A log above this size is moved aside at the next start; one older log is kept."""
_LOG_TAIL_BYTES: Final = 4096
_LOG_TAIL_LINES: Final = 12

LaunchListener = Callable[["ProcessIdentity"], None]
"""Called with the process right after its start, before it is ready: a caller that keeps process
ids must know it then, or an interrupted start would leave a process without a name."""


class Server(ABC):
    """A server process of our own, in a folder of its own.

    The object may be dropped while the server runs; a new object with the same `process` recognises
    the server.

    Attributes:
        directory: holds the configuration, the log, and the folder `data`, which belongs to the
            server's account. account: the one that the server runs as. process: the last process
            started, running or not; None when none was.
    """

    name: ClassVar[str]
    stop_signals: ClassVar[tuple[tuple[signal.Signals, float], ...]]
    """Signals that stop it, in order, each with the seconds to wait before the next one is sent."""

    def __init__(
        self,
        directory: Path,
        account: Account,
        *,
        process: ProcessIdentity | None,
        on_launch: LaunchListener | None,
    ) -> None:
        self.directory = directory
        self.account = account
        self.process = process
        self._on_launch = on_launch
        self._log_start = 0

    @property
    def data_directory(self) -> Path:
        """Belongs to the server's account; if it is deleted, the server begins with no data."""
        return self.directory / "data"

    @property
    def log_path(self) -> Path:
        """The output of the server."""
        return self.directory / "server.log"

    @abstractmethod
    def prepare(self) -> None:
        """Make everything that the server needs before its process starts; does nothing the second
        time."""

    @abstractmethod
    def command(self) -> Sequence[str | Path]:
        """The program and its arguments."""

    @abstractmethod
    def environment(self) -> dict[str, str]:
        """The whole environment of the program: nothing of the caller leaks into it."""

    @abstractmethod
    def is_ready(self) -> bool:
        """True if the process that we started serves requests now."""

    def may_start_again(self, log: str) -> bool:
        """True if a start that ended with this log is worth a retry."""
        return False

    def is_running(self) -> bool:
        """True if its process is there (it may not be ready, or be stopped by a signal)."""
        return self.process is not None and processes.is_running(self.process)

    def start(self, *, deadline_s: float = START_DEADLINE_S) -> None:
        """Start it and wait until it serves requests; only wait when it runs already.

        Raises:
            ServerFailed: it ended, or was not ready in time (then it is left as it is; `stop` ends
                it). FolderUnusable: its folder cannot be used. SetupNeeded: a program that it needs
                is missing.
        """
        if not self.is_running():
            self.launch()
        self.wait_ready(deadline_s=deadline_s)

    def __enter__(self) -> Self:
        """Start it for as long as the context lasts. Raises as `start`, and then leaves nothing."""
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Stop it."""
        self.stop()

    def launch(self) -> None:
        """Start its process without waiting until it is ready."""
        self.prepare()
        log = self._open_log()
        try:
            self.process = processes.launch(
                self.command(), log=log, account=self.account, environment=self.environment()
            )
        except OSError as error:
            raise self._failure(f"cannot be run: {reason_of(error)}") from error
        finally:
            os.close(log)
        if self.process is not None and self._on_launch is not None:
            self._on_launch(self.process)

    def wait_ready(self, *, deadline_s: float = START_DEADLINE_S) -> None:
        """Wait until it serves requests; restart it where `may_start_again` allows it."""
        end = time.monotonic() + deadline_s
        while not self.is_ready():
            if time.monotonic() > end:
                raise self._failure(f"was not ready within {deadline_s:.0f} s")
            time.sleep(_POLL_S)
            if not self.is_running() and not self.is_ready():
                with self.log_path.open("rb") as log:
                    log.seek(self._log_start)
                    of_this_start = log.read(_LOG_BYTES_MAX).decode("utf-8", errors="replace")
                if not self.may_start_again(of_this_start):
                    raise self._failure("ended before it was ready")
                self.launch()

    def stop(self) -> None:
        """Stop it by its signals, mildest first; does nothing when it is not running.

        Raises:
            ServerFailed: it survived every signal.
        """
        if self.process is None:
            return
        self.thaw()  # a process that was stopped by a signal would not see any other
        for number, deadline_s in self.stop_signals:
            processes.send(self.process, number)
            if processes.wait_gone(self.process, deadline_s):
                return
        raise self._failure("cannot be stopped")

    def send_signal(self, number: signal.Signals) -> None:
        """Send its main process a signal; does nothing when it is not running."""
        if self.process is not None:
            processes.send(self.process, number)

    def kill(self) -> None:
        """End it as a crash would (kill -9 of the main process), and wait until that is gone."""
        if self.process is None:
            return
        children = processes.children_of(self.process)
        processes.send(self.process, signal.SIGKILL)
        for child in children:  # frozen ones would never notice, and hold shared memory forever
            processes.send(child, signal.SIGCONT)
        if not processes.wait_gone(self.process, deadline_s=10.0):
            raise self._failure("cannot be killed")

    def freeze(self) -> None:
        """Freeze the whole server (SIGSTOP): from the return on, it keeps its connections and
        answers nothing.

        Raises:
            ServerFailed: it continues in spite of the signal.
        """
        if self.process is None:
            return
        self._freeze(self.process)  # first: a frozen one starts no more children
        for child in processes.children_of(self.process):
            self._freeze(child)

    def thaw(self) -> None:
        """Resume a frozen server."""
        if self.process is None:
            return
        for process in (self.process, *processes.children_of(self.process)):
            processes.send(process, signal.SIGCONT)

    def log_tail(self) -> str:
        """The last lines of the log, empty when there is none."""
        try:
            with self.log_path.open("rb") as log:
                log.seek(max(0, self.log_path.stat().st_size - _LOG_TAIL_BYTES))
                text = log.read().decode("utf-8", errors="replace")
        except OSError:
            return ""
        return "\n".join(text.splitlines()[-_LOG_TAIL_LINES:])

    def _freeze(self, process: ProcessIdentity) -> None:
        if processes.send(process, signal.SIGSTOP) and not processes.wait_frozen(
            process, _FREEZE_DEADLINE_S
        ):
            raise self._failure("cannot be frozen")

    def _open_log(self) -> int:
        if self.log_path.exists() and self.log_path.stat().st_size > _LOG_BYTES_MAX:
            self.log_path.replace(self.log_path.with_suffix(".log.1"))
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(self.log_path, flags, 0o600)
        self._log_start = os.fstat(descriptor).st_size
        return descriptor

    def _run_logged(
        self,
        command: Sequence[str | Path],
        *,
        deadline_s: float,
        purpose: str,
        failed: str,
    ) -> None:
        """Run a program to its end as the server's account, with its output in the server's log.

        Raises:
            ServerFailed: it needed too long for its `purpose`; or it `failed`.
        """
        log = self._open_log()
        try:
            done = subprocess.run(
                list(command),
                check=False,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                env=self.environment(),
                umask=0o077,
                timeout=deadline_s,
                **self.account.popen_arguments(),
            )
        except subprocess.TimeoutExpired as error:
            raise self._failure(f"needed more than {deadline_s:.0f} s {purpose}") from error
        finally:
            os.close(log)
        if done.returncode != 0:
            raise self._failure(failed)

    def _failure(self, what: str) -> ServerFailed:
        tail = self.log_tail()
        last = tail.rpartition("\n")[2].strip()
        said = f", its last line: {last}" if last else ""
        return ServerFailed(
            f"{self.name} {what}; see {self.log_path}{said}", log_path=self.log_path, log_tail=tail
        )
