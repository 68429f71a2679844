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
    site_of,
    tune,
    write_log_files,
)
from benchmarks.host import describe_host, disk_flushes
from benchmarks.load import QUICK_SHARE, Arm, Figures, Line, Load, Scope
from benchmarks.processes import ROOT, RunFailed
from benchmarks.questions import NAMES, question_of
from benchmarks.rivals.rival import NotWhole, rival_of
from benchmarks.running import run_load
from chain_kernel.text import reason_of
from chainctl.event_loop import run_async
from chainctl.output import progress, talk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

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
    """The lines of one question, in `FOLDER/QUESTION.jsonl`."""

    def __init__(self, folder: Path, question: str) -> None:
        self.path = folder / f"{question}.jsonl"
        self.lines: list[Line] = []

    def begin(
        self, *, resumes: bool, engine: str, settings: Mapping[str, object] | None = None
    ) -> int:
        """Read what is there, to go on with it, or start over; return how many lines were left out.

        Lines of another engine are of no use: a comparison is of one state of the code. Nor are
        lines of arms that have other `settings` now, by arm: a quick run sends fewer orders through
        an arm of the same name. Failed ones are rerun.
        """
        now = settings or {}
        found = read_lines(self.path) if resumes else []
        is_comparable = all(line.engine == engine for line in found)
        same = [
            line
            for line in found
            if is_comparable and now.get(line.arm, line.settings) == line.settings
        ]
        self.lines = [line for line in same if line.failure is None]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        new = self.path.with_suffix(".new")
        new.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in self.lines))
        new.replace(self.path)
        return len(found) - len(same)

    def has(self, arm: str, repeat: int) -> bool:
        """Return whether this repeat was saved, or its arm skipped."""
        return any(
            line.arm == arm and (line.repeat == repeat or line.skipped is not None)
            for line in self.lines
        )

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


class Runner:
    """One run."""

    def __init__(self, options: Options, questions: Sequence[str]) -> None:
        self._options = options
        self._engine = engine_fingerprint()
        self._run = datetime.now(UTC).isoformat(timespec="seconds")
        self._questions = {name: question_of(name) for name in questions}
        self._logs = {name: ArmLog(options.folder, name) for name in questions}

    def plan(self) -> list[Step]:
        """Return what is to be run, in its order, and begin or go on with the files."""
        scope, resumes = self._options.scope, self._options.resumes
        planned = []
        for name, question in self._questions.items():
            arms, log = question.arms(scope), self._logs[name]
            settings = {arm.name: arm_settings(arm) for arm in arms}
            left_out = log.begin(resumes=resumes, engine=self._engine, settings=settings)
            if left_out:
                talk(f"{name}: {left_out} lines are of another engine or set-up: run again")
            every = steps(name, arms, scope.repeats)
            planned += [step for step in every if not log.has(step.arm.name, step.repeat)]
        return planned

    async def run(
        self, plan: Sequence[Step], site: Site, on_step: Callable[[Step], None]
    ) -> Outcome:
        """Run the steps of `plan`; every one is saved when it ends."""
        began = time.monotonic()
        failed: list[Line] = []
        done = 0
        for step in plan:
            minutes = self._options.minutes
            if minutes is not None and time.monotonic() - began + step.arm.seconds > minutes * 60:
                break
            on_step(step)
            log = self._logs[step.question]
            if not log.has(step.arm.name, step.repeat):
                line = await self._run_step(step, site)
                log.add(line)
                talk(_as_shown(line))
                failed += [line] if line.failure is not None else []
            done += 1
        return Outcome(done=done, left=len(plan) - done, failed=failed)

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


def expected_seconds(plan: Sequence[Step], scope: Scope, *, is_warm: bool) -> float:
    """Return about how long a plan takes, with the start of the servers unless they are warm."""
    start = START_SECONDS + WARM_UP_SECONDS / (2 if scope.is_quick else 1)
    return seconds_of(plan) + (0 if is_warm else start)


def _as_shown(line: Line) -> str:
    name = f"{line.question}: {line.arm} [{line.repeat + 1}]"
    if line.skipped is not None:
        return f"{name} skipped: {line.skipped}"
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
    """Ask the questions `names`; return how many runs have no figure.

    The servers stay up only for a call that resumes.
    """
    runner = Runner(options, [name for name in NAMES if name in names])
    plan = runner.plan()
    if not plan:
        talk("chainctl: nothing is left to run")
        return 0
    minutes = expected_seconds(plan, options.scope, is_warm=False) / 60
    talk(f"chainctl: {len(plan)} runs, about {minutes:.0f} minutes; results in {options.folder}")
    outcome: Outcome | None = None
    stack = benchmark_stack(options.stack_directory)
    is_warm = options.resumes and stack.status().up  # left up by the run to be resumed
    site = site_of(stack) if is_warm else open_site(stack)
    try:
        outcome = run_async(_run(runner, plan, stack, site, options, is_warm=is_warm))
    finally:
        if outcome is not None and outcome.left:
            talk(f"chainctl: {outcome.left} runs are left: the same again with --resume")
        else:
            stack.down()
    for line in outcome.failed:
        talk(f"chainctl: {_as_shown(line)}")
    return len(outcome.failed)


async def _run(
    runner: Runner,
    plan: Sequence[Step],
    stack: LocalStack,
    site: Site,
    options: Options,
    *,
    is_warm: bool,
) -> Outcome:
    await runner.note_conditions(site, stack)
    if not is_warm:
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
        if rival_of(load.rival).absence() is None:
            talk(f"warming up: {load.rival}")
            await run_load(site, msgspec.structs.replace(load, orders=load.orders // share))
