"""One call of the benchmark, from the start of its servers to its last saved line.

Every arm is run in turn, repeat after repeat, each saved when it ends.
"""

from __future__ import annotations

import hashlib
import time
from datetime import UTC, datetime
from pathlib import Path  # msgspec looks it up
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Struct

from benchmarks.chains import (
    MAX_WAL_SIZE_MB,
    Site,
    benchmark_stack,
    open_site,
    tune,
    write_log_files,
)
from benchmarks.host import describe_host, disk_flushes
from benchmarks.load import QUICK_SHARE, Arm, Figures, Line, Load, Scope
from benchmarks.processes import ROOT, RunFailed
from benchmarks.questions import NAMES, question_of
from benchmarks.rivals.rival import NotWhole
from benchmarks.running import run_load
from chain_kernel.text import reason_of
from chainctl.event_loop import run_async
from chainctl.output import progress, talk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from local_stack import LocalStack

WARM_UP: Final = (
    Load(rival="kafka_transactions_frames", orders=100_000, batch_rows=100),
    Load(rival="kafka_transactions_events", orders=100_000, batch_rows=100),
    Load(rival="engine", orders=200_000, batch_rows=1_000),
    Load(rival="bare_pages", orders=200_000, batch_rows=1_000),
)
"""Java compiles what runs often: a broker that has just started is three times slower."""

WARM_UP_SECONDS: Final = 45.0
START_SECONDS: Final = 20.0
"""The start of the servers, with the measurement of the disk."""

CONDITIONS: Final = "conditions.jsonl"

# -- saved lines -----------------------------------------------------------------------------------

_ENGINE: Final = ("chain_kernel", "orderchain", "sequencer", "matcher_receiver", "gapfill")


def engine_fingerprint() -> str:
    """Return a fingerprint of the state of the engine's code, committed or not."""
    found = hashlib.sha256()
    for package in _ENGINE:
        for path in sorted((ROOT / package).rglob("*")):
            if path.suffix in (".py", ".sql"):
                found.update(path.relative_to(ROOT).as_posix().encode() + b"\0")
                found.update(path.read_bytes())
    found.update((ROOT / "schema.sql").read_bytes())
    return found.hexdigest()[:12]


class ArmLog:
    """The lines of one question, in `FOLDER/QUESTION.jsonl`, which begins empty."""

    def __init__(self, folder: Path, question: str) -> None:
        self.path = folder / f"{question}.jsonl"
        self.lines: list[Line] = []
        folder.mkdir(parents=True, exist_ok=True)
        self.path.write_bytes(b"")

    def add(self, line: Line) -> None:
        """Save a line. It is on disk when this returns."""
        self.lines.append(line)
        with self.path.open("ab") as file:
            file.write(msgspec.json.encode(line) + b"\n")


def read_lines(path: Path) -> list[Line]:
    """Return the lines of a file; a last one that was cut off by a crash is left out."""
    found = []
    for text in path.read_bytes().splitlines() if path.is_file() else []:
        try:
            found.append(msgspec.json.decode(text, type=Line))
        except msgspec.DecodeError:
            continue
    return found


# -- one run ---------------------------------------------------------------------------------------


class Conditions(Struct, frozen=True, kw_only=True):
    """Under which conditions the lines of a run were taken."""

    run: str
    host: dict[str, object]
    engine: str
    postgres: dict[str, str]
    disk: dict[str, float]
    """Microseconds of a write with each way to flush it (pg_test_fsync); empty without it."""


class Options(Struct, frozen=True, kw_only=True):
    """What to run."""

    scope: Scope
    folder: Path
    stack_directory: Path | None = None


class Step(Struct, frozen=True):
    """One repeat of one arm."""

    question: str
    arm: Arm
    repeat: int


class Runner:
    """One run."""

    def __init__(self, options: Options, questions: Sequence[str]) -> None:
        self._options = options
        self._engine = engine_fingerprint()
        self._run = datetime.now(UTC).isoformat(timespec="seconds")
        self._questions = {name: question_of(name) for name in questions}
        self._logs = {name: ArmLog(options.folder, name) for name in questions}

    def plan(self) -> list[Step]:
        """Return what is to be run, in its order."""
        scope = self._options.scope
        return [
            step
            for name, question in self._questions.items()
            for step in steps(name, question.arms(scope), scope.repeats)
        ]

    async def run(
        self, plan: Sequence[Step], site: Site, on_step: Callable[[Step], None]
    ) -> list[Line]:
        """Run the steps of `plan`, each saved when it ends; return those without a figure."""
        failed: list[Line] = []
        for step in plan:
            on_step(step)
            line = await self._run_step(step, site)
            self._logs[step.question].add(line)
            talk(_as_shown(line))
            failed += [line] if line.failure is not None else []
        return failed

    async def _run_step(self, step: Step, site: Site) -> Line:
        """Run one repeat of one arm. A run that fails, or is not whole, has no figure."""
        arm = step.arm
        figures: Figures | None = None
        failure: str | None = None
        began = time.monotonic()
        try:
            question = self._questions[step.question]
            figures = await question.run(site, arm, self._logs[step.question].lines)
        except (RunFailed, NotWhole, TimeoutError) as error:
            failure = reason_of(error)
        return Line(
            question=step.question,
            arm=arm.name,
            repeat=step.repeat,
            run=self._run,
            engine=self._engine,
            settings=arm_settings(arm),
            figures=figures,
            failure=failure,
            seconds=time.monotonic() - began,
        )

    async def note_conditions(self, site: Site, stack: LocalStack) -> None:
        """Write down under which conditions this run is taken."""
        conditions = Conditions(
            run=self._run,
            host=describe_host(),
            engine=self._engine,
            postgres=await tune(site),
            disk=disk_flushes(stack.postgres()),
        )
        with (self._options.folder / CONDITIONS).open("ab") as file:
            file.write(msgspec.json.encode(conditions) + b"\n")


def arm_settings(arm: Arm) -> dict[str, Any]:
    """Return what an arm is set to, as it is saved."""
    settings: dict[str, Any] = msgspec.to_builtins(arm.settings if arm.load is None else arm.load)
    return settings


def steps(question: str, arms: Sequence[Arm], repeats: int) -> Iterator[Step]:
    """Yield repeat after repeat, with every arm in each: what is compared runs close together."""
    for repeat in range(repeats):
        for arm in arms:
            if repeat < arm.repeats_max:
                yield Step(question, arm, repeat)


def seconds_of(plan: Iterable[Step]) -> float:
    """Return about how long a plan takes."""
    return sum(step.arm.seconds for step in plan)


def expected_seconds(plan: Sequence[Step], scope: Scope) -> float:
    """Return about how long a plan takes, with the start of the servers."""
    return START_SECONDS + WARM_UP_SECONDS / (2 if scope.is_quick else 1) + seconds_of(plan)


def _as_shown(line: Line) -> str:
    name = f"{line.question}: {line.arm} [{line.repeat + 1}]"
    if line.figures is None:
        return f"{name} has no figure: {line.failure}"
    for figure in ("delivered", "published", "persisted", "rows"):
        if (rate := line.figures.get(f"{figure}_per_second")) is not None:
            return f"{name} {rate:,.0f}/s {figure}"
    return f"{name} done"


# -- one call --------------------------------------------------------------------------------------


def listed(names: Sequence[str], scope: Scope) -> Iterator[tuple[str, int, float, str]]:
    """Yield every question's name, its runs, their minutes, and its title."""
    for name in names:
        asked = question_of(name)
        plan = list(steps(name, asked.arms(scope), scope.repeats))
        yield name, len(plan), seconds_of(plan) / 60, asked.title


def measure(names: Sequence[str], options: Options) -> int:
    """Ask the questions `names`; return how many runs have no figure."""
    runner = Runner(options, [name for name in NAMES if name in names])
    plan = runner.plan()
    minutes = expected_seconds(plan, options.scope) / 60
    talk(f"chainctl: {len(plan)} runs, about {minutes:.0f} minutes; results in {options.folder}")
    stack = benchmark_stack(options.stack_directory)
    site = open_site(stack)
    try:
        failed = run_async(_run(runner, plan, stack, site, options))
    finally:
        stack.down()
    for line in failed:
        talk(f"chainctl: {_as_shown(line)}")
    return len(failed)


async def _run(
    runner: Runner, plan: Sequence[Step], stack: LocalStack, site: Site, options: Options
) -> list[Line]:
    await runner.note_conditions(site, stack)
    await _warm_up(site, options.scope)
    with progress("measuring", seconds_of(plan)) as bar:
        seconds = 0.0

        def show(step: Step) -> None:
            nonlocal seconds
            bar.move_to(round(seconds), f"{step.question}: {step.arm.name} [{step.repeat + 1}]")
            seconds += step.arm.seconds

        return await runner.run(plan, site, show)


async def _warm_up(site: Site, scope: Scope) -> None:
    share = QUICK_SHARE if scope.is_quick else 1
    talk("warming up: files of PostgreSQL's log")
    await write_log_files(site, MAX_WAL_SIZE_MB // share)
    for load in WARM_UP:
        talk(f"warming up: {load.rival}")
        await run_load(site, msgspec.structs.replace(load, orders=load.orders // share))
