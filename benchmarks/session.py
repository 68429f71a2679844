"""One call of the benchmark, from the start of its servers to its last saved line.

Every arm is run in turn, repeat after repeat, each saved when it ends.
"""

from __future__ import annotations

import time
from collections import defaultdict
from datetime import UTC, datetime
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
from benchmarks.host import describe_host
from benchmarks.load import QUICK_SHARE, Arm, Figures, Line, Load, Scope
from benchmarks.processes import RunFailed
from benchmarks.questions import question_of
from benchmarks.rivals.rival import NotWhole
from benchmarks.runs.loads import run_load
from chain_kernel.text import reason_of
from chainctl.event_loop import run_async
from chainctl.output import progress, talk

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

WARM_UP: Final = (
    Load(rival="kafka_transactions_frames", orders=100_000, batch_rows=100),
    Load(rival="kafka_transactions_events", orders=100_000, batch_rows=100),
    Load(rival="engine", orders=200_000, batch_rows=1_000),
    Load(rival="bare_pages", orders=200_000, batch_rows=1_000),
)
"""Java compiles what runs often: a broker that has just started is three times slower."""

CONDITIONS: Final = "conditions.json"

# -- saved lines -----------------------------------------------------------------------------------


class Conditions(Struct, frozen=True, kw_only=True):
    """Under which conditions the last run was taken."""

    run: str
    host: dict[str, object]
    postgres: dict[str, str]


def saved_in(folder: Path, question: str) -> Path:
    """Return the file with the lines of a question."""
    return folder / f"{question}.jsonl"


def save(folder: Path, line: Line) -> None:
    """Save a line. It is on disk when this returns."""
    with saved_in(folder, line.question).open("ab") as file:
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


# -- steps -----------------------------------------------------------------------------------------


class Step(Struct, frozen=True):
    """One repeat of one arm."""

    question: str
    arm: Arm
    repeat: int


def steps(question: str, scope: Scope) -> list[Step]:
    """Return repeat after repeat, with every arm in each: what is compared runs close together."""
    return [
        Step(question, arm, repeat)
        for repeat in range(scope.repeats)
        for arm in question_of(question).arms(scope)
        if repeat < arm.repeats_max
    ]


async def run_steps(
    plan: Sequence[Step], site: Site, folder: Path, on_step: Callable[[Step], None]
) -> list[Line]:
    """Run the steps of `plan`, each saved when it ends; return those without a figure."""
    run = _now()
    done: defaultdict[str, list[Line]] = defaultdict(list)
    for step in plan:
        on_step(step)
        line = await _run_step(step, site, run, done[step.question])
        done[step.question].append(line)
        save(folder, line)
        talk(_as_shown(line))
    return [line for lines in done.values() for line in lines if line.failure is not None]


async def _run_step(step: Step, site: Site, run: str, earlier: Sequence[Line]) -> Line:
    """Run one repeat of one arm. A run that fails, or is not whole, has no figure."""
    arm = step.arm
    figures: Figures | None = None
    failure: str | None = None
    began = time.monotonic()
    try:
        figures = await question_of(step.question).run(site, arm, earlier)
    except (RunFailed, NotWhole, TimeoutError) as error:
        failure = reason_of(error)
    settings: dict[str, Any] = msgspec.to_builtins(arm.settings if arm.load is None else arm.load)
    return Line(
        question=step.question,
        arm=arm.name,
        repeat=step.repeat,
        run=run,
        settings=settings,
        figures=figures,
        failure=failure,
        seconds=time.monotonic() - began,
    )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _as_shown(line: Line) -> str:
    name = f"{line.question}: {line.arm} [{line.repeat + 1}]"
    if line.figures is None:
        return f"{name} has no figure: {line.failure}"
    for figure in ("delivered", "published", "persisted", "rows"):
        if (rate := line.figures.get(f"{figure}_per_second")) is not None:
            return f"{name} {rate:,.0f}/s {figure}"
    return f"{name} done"


# -- one call --------------------------------------------------------------------------------------


def measure(names: Sequence[str], scope: Scope, folder: Path, stack_directory: Path | None) -> int:
    """Ask the questions `names`; return how many runs have no figure."""
    plan = [step for name in names for step in steps(name, scope)]
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        saved_in(folder, name).write_bytes(b"")
    talk(f"chainctl: {len(plan)} runs; results in {folder}")
    stack = benchmark_stack(stack_directory)
    site = open_site(stack)
    try:
        failed = run_async(_measure(plan, site, scope, folder))
    finally:
        stack.down()
    for line in failed:
        talk(f"chainctl: {_as_shown(line)}")
    return len(failed)


async def _measure(plan: Sequence[Step], site: Site, scope: Scope, folder: Path) -> list[Line]:
    conditions = Conditions(run=_now(), host=describe_host(), postgres=await tune(site))
    (folder / CONDITIONS).write_bytes(msgspec.json.encode(conditions))
    await _warm_up(site, scope)
    with progress("measuring", len(plan)) as bar:
        done = iter(range(len(plan)))
        return await run_steps(
            plan,
            site,
            folder,
            lambda step: bar.move_to(
                next(done), f"{step.question}: {step.arm.name} [{step.repeat + 1}]"
            ),
        )


async def _warm_up(site: Site, scope: Scope) -> None:
    share = QUICK_SHARE if scope.is_quick else 1
    talk("warming up: files of PostgreSQL's log")
    await write_log_files(site, MAX_WAL_SIZE_MB // share)
    for load in WARM_UP:
        talk(f"warming up: {load.rival}")
        await run_load(site, msgspec.structs.replace(load, orders=load.orders // share))
