"""A process of the demo, from both its ends, and the messages between: one JSON object per line.

The demo writes a job to the standard input of a process it has started, as the first line, and
commands after it. (On a command line every user of the machine could read the passwords.) The
process writes reports to its standard output. When its standard input ends, the demo is gone, and
the process ends too.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from asyncio.subprocess import PIPE
from collections import deque
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
from msgspec import Struct

from chain_kernel.errors import OrderchainError
from chain_kernel.text import reason_of
from chainctl.monitor_server import Address
from local_stack.process import send_to_child
from orderchain_demo.lossy_link import Addable, LinkCounters, LinkFaults

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import Callable, Coroutine


# -- messages --------------------------------------------------------------------------------------

LINE_BYTES_MAX: Final = 4 * 1024 * 1024
"""The longest line: reports have a few dozen numbers, and Spark's a sample of what it found."""


class MatchingJob(Struct, frozen=True, kw_only=True):
    """What the matching service is to do."""

    database: str
    gap_database: str
    kafka: str
    chain_id: int
    receiver: str
    """Name under which the checkpoint is stored."""
    topic: str
    journal: str
    """Path of the journal that is written."""
    faults: LinkFaults
    last_key: str
    """Key of the input's last row: the frame that ends with it is lost."""
    life: int
    """How often the service was started before, for this chain."""
    save_rows: int
    """State and checkpoint are stored after this many rows, and when nothing else is to do."""
    http: Address | None = None
    """Where it serves its metrics."""


class CheckingJob(Struct, frozen=True, kw_only=True):
    """What Spark starts for: the chain is made meanwhile."""

    is_long: bool
    """Whether Spark is tuned for a run that lasts."""


class FinishCommand(Struct, frozen=True, tag=True):
    """To the matching service: the chain ends here. Save, and end once this id is processed."""

    id: int


class VerifyCommand(Struct, frozen=True, kw_only=True, tag=True):
    """To the verifier, which waits once Spark is up: all is delivered, verify it."""

    database: str
    chain_id: int
    journal: str
    """Path of the journal."""


ChildCommand = FinishCommand | VerifyCommand


class ReceiverCounters(Addable, kw_only=True):
    """What the receiver did with what the link passed on."""

    frames_live: int = 0
    """Frames whose rows were handed on, whole or in part."""
    frames_duplicate: int = 0
    """Frames dropped because all their rows had been delivered."""
    frames_refused: int = 0
    """Frames dropped for any other reason: broken, of an unknown publisher, without a link."""
    rows_live: int = 0
    """Rows that came by frames."""
    rows_filled: int = 0
    """Rows that were read from the database, to fill gaps."""
    rows_caught_up: int = 0
    """Rows that were read from the database at the start."""
    gaps: int = 0
    """Gaps filled."""


class MatchingLive(Struct, frozen=True, kw_only=True, tag=True):
    """From the matching service: it has caught up and follows the live frames."""

    head: int
    """Id of the last row processed."""


class MatchingResumed(Struct, frozen=True, kw_only=True, tag=True):
    """From the matching service, once at its start: its place before it reads anything."""

    head: int
    """head_delivered as stored with the state; 0 at the first start."""
    journal_rows_cut: int
    """Rows after the checkpoint that were cut off the journal: delivered again from now on."""


class MatchingProgress(Struct, frozen=True, kw_only=True, tag=True):
    """From the matching service: its progress."""

    head: int
    """Id of the last row processed."""
    rows: int
    """Rows processed in this life."""
    events: int
    """Rows in the state: those of all its lives, each once."""
    seconds: float
    """From its first row to its last."""
    receiver: ReceiverCounters
    link: LinkCounters
    saves: int
    """Times that state and checkpoint were stored, in one transaction each."""


class MatchingFinished(Struct, frozen=True, kw_only=True, tag=True):
    """From the matching service at its end: everything is delivered, stored and digested."""

    delivered: MatchingProgress
    last_gap_shown_by: str
    """What showed the last gap: `frame`, `heartbeat`, `poll`; empty without one."""
    counters: dict[str, int]
    digest: str


class SparkProgress(Struct, frozen=True, kw_only=True, tag=True):
    """From the verifier: its progress."""

    step: str
    done: float
    """Steps that are done, of `spark_check.STEPS`, with the share of the one under way."""


class SparkReport(Struct, frozen=True, kw_only=True, tag=True):
    """From the verifier at its end."""

    report: dict[str, Any]
    """As `chainctl verify --json` prints it."""


ChildReport = (
    MatchingLive
    | MatchingResumed
    | MatchingProgress
    | MatchingFinished
    | SparkProgress
    | SparkReport
)


def line_of(message: Struct) -> bytes:
    """Return a message as a line."""
    return msgspec.json.encode(message) + b"\n"


# -- as the demo sees a process --------------------------------------------------------------------

STDERR_LINES_KEPT: Final = 20
"""The last lines show why a process died; one that writes forever must not fill our memory."""

STOP_SECONDS: Final = 10.0
"""How long a process may take to end after SIGTERM, before it is killed."""


_R = TypeVar("_R")


class ChildDied(OrderchainError):
    """A process of the demo ended when it should not have."""

    def __init__(self, name: str, status: int | None, last_line: str) -> None:
        super().__init__(f"the {name} ended with {_status_text(status)}: {last_line or 'no word'}")


class Child:
    """One process of the demo. Started by `start`, always stopped by `stop`."""

    def __init__(self, name: str, process: Process) -> None:
        self._name = name
        self._process = process
        self._reports: dict[type, ChildReport] = {}
        self._is_killed = False
        self._stderr: deque[str] = deque(maxlen=STDERR_LINES_KEPT)
        self._listening = asyncio.create_task(self._listen(), name=f"stderr of the {name}")

    @classmethod
    async def start(cls, name: str, module: str, job: Struct) -> Child:
        """Start `python -m module` and give it its job.

        In a session of its own: Ctrl-C on the terminal reaches the demo alone, which then ends its
        processes in order.
        """
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", module,
            stdin=PIPE, stdout=PIPE, stderr=PIPE, limit=LINE_BYTES_MAX, start_new_session=True,
        )  # fmt: skip
        child = cls(name, process)
        await child._write(line_of(job))
        return child

    async def report(self) -> ChildReport:
        """Wait for the next report. Raises ChildDied when none comes any more."""
        stdout = self._process.stdout
        line = await stdout.readline() if stdout is not None else b""
        if not line.endswith(b"\n"):
            raise await self._death()
        try:
            report: ChildReport = msgspec.json.decode(line, type=ChildReport)
        except msgspec.MsgspecError as error:
            raise OrderchainError(
                f"the {self._name} reported nonsense: {reason_of(error)}"
            ) from error
        return report

    def last(self, kind: type[_R]) -> _R | None:
        """Return the last report of a kind that `listen` has taken in."""
        report = self._reports.get(kind)
        return report if isinstance(report, kind) else None

    async def listen(self, changed: asyncio.Event) -> None:
        """Take in reports until the last one, and set `changed` at each.

        Raises ChildDied when the last one never comes, unless the process was killed: then what it
        had reported before is taken in.
        """
        try:
            while self.last(MatchingFinished) is None:
                report = await self.report()
                self._reports[type(report)] = report
                changed.set()
            await self.wait()
        except ChildDied:
            if not self._is_killed:
                raise

    async def send(self, command: ChildCommand) -> None:
        """Give the process a command."""
        await self._write(line_of(command))

    async def kill(self) -> None:
        """Kill it with SIGKILL, while it works, and wait until it is gone."""
        self._is_killed = True
        send_to_child(self._process, signal.SIGKILL)
        await self._gone()

    async def wait(self) -> None:
        """Wait until it has ended by itself. Raises ChildDied when that was a failure."""
        async with asyncio.timeout(STOP_SECONDS):
            await self._process.wait()
        if self._process.returncode:
            raise await self._death()

    async def stop(self) -> None:
        """End it if it still runs: by SIGTERM, then by SIGKILL."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            # With its Java, if it has one: they share a session of their own.
            send_to_child(self._process, number, whole_session=True)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STOP_SECONDS):
                    await self._process.wait()
                    break
        await self._gone()

    async def _gone(self) -> None:
        async with asyncio.timeout(STOP_SECONDS):
            await self._process.wait()
            await self._listening

    async def _death(self) -> ChildDied:
        """Return what to raise once the process has ended by itself."""
        # Its reports have ended, so it is about to end: a signal now could replace its own status.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_SECONDS):
                await self._process.wait()
        await self.stop()
        last_line = self._stderr[-1] if self._stderr else ""
        return ChildDied(self._name, self._process.returncode, last_line)

    async def _write(self, line: bytes) -> None:
        # A process that has died meanwhile shows it by the end of its reports.
        stdin = self._process.stdin
        if stdin is None or stdin.is_closing():
            return
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            stdin.write(line)
            await stdin.drain()

    async def _listen(self) -> None:
        """Keep the last lines of stderr."""
        stderr = self._process.stderr
        if stderr is None:
            return
        async for line in stderr:
            text = line.decode(errors="replace").strip()
            if text:
                self._stderr.append(text)


def _status_text(status: int | None) -> str:
    if status is None:
        return "no status"
    return f"signal {-status}" if status < 0 else f"status {status}"


# -- as a process sees itself ----------------------------------------------------------------------

_Job = TypeVar("_Job")

JOB_SECONDS: Final = 30.0
"""How long a process waits for its job: the demo writes it at once."""


class DemoGone(OrderchainError):
    """The demo ended without waiting for this process."""


class Pipe:
    """Commands in, reports out."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader

    async def job(self, job_type: type[_Job]) -> _Job:
        """Return the first line."""
        async with asyncio.timeout(JOB_SECONDS):
            line = await self._line()
        return msgspec.json.decode(line, type=job_type)

    async def command(self) -> ChildCommand:
        """Wait for the next command. Raises DemoGone when none can come any more."""
        command: ChildCommand = msgspec.json.decode(await self._line(), type=ChildCommand)
        return command

    def report(self, message: ChildReport) -> None:
        """Write a report. Raises BrokenPipeError when the demo is gone.

        The write may wait for the reader: a report is a few hundred bytes and the demo reads all
        of them at once.
        """
        sys.stdout.buffer.write(line_of(message))
        sys.stdout.buffer.flush()

    async def _line(self) -> bytes:
        line = await self._reader.readline()
        if not line.endswith(b"\n"):
            raise DemoGone("the demo is gone")
        return line


async def open_pipe() -> Pipe:
    """Return the pipe to the demo."""
    reader = asyncio.StreamReader(limit=LINE_BYTES_MAX)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin.buffer)
    return Pipe(reader)


def run_process(work: Callable[[Pipe], Coroutine[object, object, None]]) -> int:
    """Run `work` with the pipe to the demo; return the exit code. One line of stderr on failure."""
    from chainctl.event_loop import run_async
    from chainctl.exits import error_line, exit_code
    from chainctl.output import talk

    async def worked() -> None:
        await work(await open_pipe())

    try:
        run_async(worked())
    except BaseException as error:  # noqa: BLE001 - the one place where every error ends
        talk(error_line(error))
        return int(exit_code(error))
    return 0
