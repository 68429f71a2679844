"""One call of the benchmark, from the start of its servers to its table."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from benchmarks.ends import RunFailed
from benchmarks.programs import PROGRAMS, is_done, run_program
from benchmarks.questions import NAMES, question_of
from benchmarks.runner import (
    Options,
    Outcome,
    Runner,
    Step,
    expected_seconds,
    site_for,
    steps,
    told,
    warm_up,
)
from chainctl.output import progress, talk
from chainctl.running import run_async
from local_stack.folders import DIRECTORY_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from benchmarks.chains import Site
    from benchmarks.question import Scope
    from local_stack import LocalStack


def listed(names: Sequence[str], scope: Scope) -> Iterator[tuple[str, int, float, str]]:
    """Yield every question's name, its runs, their minutes, and its title."""
    for name in names:
        if name in PROGRAMS:
            yield name, 1, PROGRAMS[name].seconds / 60, PROGRAMS[name].title
        else:
            asked = question_of(name)
            plan = list(steps(name, asked.arms(scope), scope.repeats))
            yield name, len(plan), sum(step.arm.seconds for step in plan) / 60, asked.title


def measure(names: Sequence[str], options: Options) -> int:
    """Ask the questions `names`; return how many runs have no figure."""
    asked = tuple(name for name in NAMES if name in names)
    programs = [name for name in PROGRAMS if name in names]
    if options.resumes:
        programs = [name for name in programs if not is_done(name)]
    runner = Runner(options, asked, talk)
    plan = runner.plan()
    _tell_expected(plan, programs, options)
    failed = _ask(runner, plan, options) if plan else 0
    for name in programs:
        if options.minutes is not None and plan:
            talk(f"{name}: left for a call without --minutes")
        else:
            failed += _run_program(name, options)
    return failed


def _tell_expected(plan: Sequence[Step], programs: Sequence[str], options: Options) -> None:
    seconds = expected_seconds(plan, options.scope, is_warm=False) if plan else 0.0
    seconds += sum(PROGRAMS[name].seconds for name in programs)
    if not seconds:
        talk("chainctl: nothing is left to run")
    else:
        runs = len(plan) + len(programs)
        talk(
            f"chainctl: {runs} runs, about {seconds / 60:.0f} minutes; results in {options.folder}"
        )


def _ask(runner: Runner, plan: Sequence[Step], options: Options) -> int:
    """Run `plan`; the servers stay up only for a call that goes on with it."""
    outcome: Outcome | None = None
    stack, site, is_warm = site_for(options)
    try:
        outcome = run_async(_run(runner, plan, stack, site, is_warm=is_warm))
    finally:
        if outcome is not None and outcome.left:
            talk(f"chainctl: {outcome.left} runs are left: the same again with --resume")
        else:
            stack.down()
    for line in outcome.failed:
        talk(f"chainctl: {told(line)}")
    return len(outcome.failed)


async def _run(
    runner: Runner, plan: Sequence[Step], stack: LocalStack, site: Site, *, is_warm: bool
) -> Outcome:
    await runner.note_conditions(site, stack)
    if not is_warm:
        await warm_up(site, runner.scope, talk)
    with progress("measuring", sum(step.arm.seconds for step in plan)) as bar:
        seconds = 0.0

        def show(step: Step) -> None:
            nonlocal seconds
            bar.move_to(round(seconds), f"{step.question}: {step.arm.name} [{step.repeat + 1}]")
            seconds += step.arm.seconds

        return await runner.run(plan, site, show)


def _run_program(name: str, options: Options) -> int:
    environment = dict(os.environ)
    if options.stack_directory is not None:
        environment[DIRECTORY_VARIABLE] = str(options.stack_directory)
    try:
        run_program(name, environment)
    except RunFailed as error:
        talk(f"chainctl: {error}")
        return 1
    return 0
