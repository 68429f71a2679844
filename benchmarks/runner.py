"""Asks the questions: every arm in turn, repeat after repeat, each saved when it ends."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path  # msgspec looks it up
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from benchmarks.arm_log import ArmLog, engine_fingerprint
from benchmarks.chains import (
    MAX_WAL_SIZE_MB,
    benchmark_stack,
    open_site,
    site_of,
    tune,
    write_log_files,
)
from benchmarks.ends import RunFailed
from benchmarks.host import describe_host, disk_flushes
from benchmarks.load import Load
from benchmarks.question import QUICK_SHARE, Arm, Figures, Line, Question, Scope
from benchmarks.questions import question_of
from benchmarks.rivals import rival_of
from benchmarks.rivals.rival import NotWhole
from benchmarks.running import run_load
from orderchain.text import reason_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from benchmarks.chains import Site
    from local_stack import LocalStack

WARM_UP = (
    Load(rival="kafka_transactions_frames", orders=100_000, batch_rows=100),
    Load(rival="kafka_transactions_events", orders=100_000, batch_rows=100),
    Load(rival="engine", orders=200_000, batch_rows=1_000),
    Load(rival="bare_pages", orders=200_000, batch_rows=1_000),
)
"""Java compiles what runs often: a broker that has just started is three times slower."""

WARM_UP_SECONDS = 45.0
START_SECONDS = 20.0
"""The start of the servers, with the measurement of the disk."""

CONDITIONS = "conditions.jsonl"


class Conditions(Struct, frozen=True, kw_only=True):
    """Under which conditions the lines of a run were taken."""

    run: str
    host: dict[str, object]
    engine: str
    postgres: dict[str, str]
    disk: dict[str, float]
    """Microseconds of a write with each way to flush it (pg_test_fsync); empty without it."""
    is_quick: bool
    repeats: int


class Options(Struct, frozen=True, kw_only=True):
    """What to run."""

    scope: Scope
    folder: Path
    resumes: bool = False
    minutes: float | None = None
    """End after this long, to be resumed; the arm under way is finished first."""
    stack_directory: Path | None = None


class Step(Struct, frozen=True):
    """One repeat of one arm that is still to be run."""

    question: str
    arm: Arm
    repeat: int


class Outcome(Struct, frozen=True, kw_only=True):
    """How a run ended."""

    done: int
    left: int
    failed: list[Line]
    skipped: list[Line]


class Runner:
    """One run."""

    def __init__(
        self, options: Options, questions: Sequence[str], tell: Callable[[str], None]
    ) -> None:
        self._options = options
        self._tell = tell
        self._engine = engine_fingerprint()
        self._run = datetime.now(UTC).isoformat(timespec="seconds")
        self._questions: dict[str, Question] = {name: question_of(name) for name in questions}
        self._logs = {name: ArmLog(options.folder, name) for name in questions}

    @property
    def scope(self) -> Scope:
        """How much is asked."""
        return self._options.scope

    def plan(self) -> list[Step]:
        """Return what is to be run, in its order, and begin or go on with the files."""
        arms = {name: asked.arms(self._options.scope) for name, asked in self._questions.items()}
        for name, log in self._logs.items():
            left_out = log.begin(resumes=self._options.resumes, engine=self._engine)
            left_out += log.keep_only({arm.name: arm_settings(arm) for arm in arms[name]})
            if left_out:
                self._tell(f"{name}: {left_out} lines are of another engine or set-up: run again")
        return [
            step
            for name in self._questions
            for step in steps(name, arms[name], self._options.scope.repeats)
            if not self._logs[name].has(step.arm.name, step.repeat)
        ]

    async def run(
        self, plan: Sequence[Step], site: Site, on_step: Callable[[Step], None]
    ) -> Outcome:
        """Run the steps of `plan`; every one is saved when it ends."""
        began = time.monotonic()
        failed, skipped, done = [], [], 0
        for step in plan:
            minutes = self._options.minutes
            if minutes is not None and time.monotonic() - began + step.arm.seconds > minutes * 60:
                break
            on_step(step)
            log = self._logs[step.question]
            if not log.has(step.arm.name, step.repeat):
                line = await self._run_step(step, site)
                log.add(line)
                self._tell(told(line))
                failed += [line] if line.failure is not None else []
                skipped += [line] if line.skipped is not None else []
            done += 1
        return Outcome(done=done, left=len(plan) - done, failed=failed, skipped=skipped)

    async def _run_step(self, step: Step, site: Site) -> Line:
        """Run one repeat of one arm. A run that fails, or is not whole, has no figure."""
        arm = step.arm
        figures: Figures | None = None
        failure: str | None = None
        began = time.monotonic()
        absence = rival_of(arm.load.rival).absence() if arm.load is not None else None
        if absence is None:
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
            skipped=absence,
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
            is_quick=self._options.scope.is_quick,
            repeats=self._options.scope.repeats,
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


def expected_seconds(plan: Sequence[Step], scope: Scope, *, is_warm: bool) -> float:
    """Return about how long a plan takes, with the start of the servers unless they are warm."""
    seconds = sum(step.arm.seconds for step in plan)
    if is_warm:
        return seconds
    return seconds + START_SECONDS + WARM_UP_SECONDS / (2 if scope.is_quick else 1)


async def warm_up(site: Site, scope: Scope, tell: Callable[[str], None]) -> None:
    """Run what makes the servers warm; no result is kept."""
    share = QUICK_SHARE if scope.is_quick else 1
    tell("warming up: files of PostgreSQL's log")
    await write_log_files(site, MAX_WAL_SIZE_MB // share)
    for load in WARM_UP:
        if rival_of(load.rival).absence() is None:
            tell(f"warming up: {load.rival}")
            await run_load(site, msgspec.structs.replace(load, orders=load.orders // share))


def told(line: Line) -> str:
    """Return a line of talk about a saved line."""
    name = f"{line.question}: {line.arm} [{line.repeat + 1}]"
    if line.skipped is not None:
        return f"{name} skipped: {line.skipped}"
    if line.figures is None:
        return f"{name} has no figure: {line.failure}"
    for figure in ("delivered", "published", "persisted", "rows"):
        if (rate := line.figures.get(f"{figure}_per_second")) is not None:
            return f"{name} {rate:,.0f}/s {figure}"
    return f"{name} done"


def site_for(options: Options) -> tuple[LocalStack, Site, bool]:
    """Return the stack, where it is, and whether it is warm: left up by the run to be resumed."""
    stack = benchmark_stack(options.stack_directory)
    if options.resumes and stack.status().up:
        return stack, site_of(stack), True
    return stack, open_site(stack), False
