"""Runs a demo from end to end."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from chain_kernel.text import counted
from chainctl.event_loop import one_loop, run_async
from chainctl.output import Stopwatch, progress, talk
from local_stack import LocalStack, default_directory
from local_stack.folders import DIRECTORY_VARIABLE, make_shared_folder, service_account
from local_stack.last_demo import FOLDER, LastDemo, leave_demo
from orderchain_demo.preparation import DemoInput, generated_input, read_input
from orderchain_demo.scenario import Plan, ScenarioOutcome, run_scenario, set_up_chain
from orderchain_demo.spark_check import STEPS, checker
from orderchain_demo.summary import Summary, summarize

if TYPE_CHECKING:
    from collections.abc import Iterator

    from chainctl.event_loop import OneLoop
    from orderchain_demo import DemoOptions
    from orderchain_demo.spark_check import Check


COMMANDS: Final = ("status", "receive", "verify", "console")
"""The commands that look at what a demo has left."""


def run_demo(stack: LocalStack, options: DemoOptions) -> Summary:
    """Run the whole demo; the stack stays up. Every process of its own has ended at the return.

    Raises InputError for an input that cannot be read, before anything is sequenced; StackError,
    OrderchainError when it could not be completed.
    """
    watch = Stopwatch()
    given = _given_input(options)
    with one_loop() as loop, checker(loop, options) as check:
        with _demo_folder(stack) as folder:
            demo_input = given or _generated_input(options, folder)
            stack.up(talk)
            setup = run_async(set_up_chain(stack))
        plan = Plan(
            setup=setup,
            demo_input=demo_input,
            faults=options.faults(),
            journal=folder / "journal.jsonl",
            http=options.http,
        )
        phases = {"stack and input": watch.seconds}
        outcome, report = _perform(loop, plan, check, options.verifier, phases)
    leave_demo(stack, LastDemo(chain=plan.setup.chain_id, journal=str(plan.journal)))
    commands = _commands(stack, with_spark=options.with_spark)
    return summarize(plan, options, outcome, report, commands=commands, phases=phases)


def _given_input(options: DemoOptions) -> DemoInput | None:
    """Read the file that was given, before anything is made or started."""
    if options.input is None:
        return None
    with progress("input", None) as bar:
        given = read_input(options.input, bar.move_to)
    talk(f"Read {counted(given.expected.rows, 'order')}")
    return given


def _generated_input(options: DemoOptions, folder: Path) -> DemoInput:
    talk("Generating orders")
    with progress("input", 2 * options.orders) as bar:  # each is written, and read
        return generated_input(folder, options.seed, options.orders, bar.move_to)


def _perform(
    loop: OneLoop, plan: Plan, check: Check, verifier: str, phases: dict[str, float]
) -> tuple[ScenarioOutcome, dict[str, Any]]:
    """Play, then have `verifier` judge; note in `phases` how long each took."""
    chain_id, rows = plan.setup.chain_id, plan.rows
    watch = Stopwatch()
    talk(f"Sequencing {counted(rows, 'order')} into chain {chain_id}, seed {plan.faults.seed}")
    with progress("orders", rows) as bar:
        outcome = loop.run(run_scenario(plan, bar))
    phases["orders"] = watch.seconds
    talk(f"Verifying database and journal: {verifier}")
    with progress(verifier, STEPS, is_awaited=True) as bar:
        report = check(plan, bar)
    phases[verifier] = watch.seconds - phases["orders"]
    return outcome, report


@contextmanager
def _demo_folder(stack: LocalStack) -> Iterator[Path]:
    """Make a folder for this demo; it is removed when there is nothing to keep in it."""
    make_shared_folder(stack.directory, service_account())
    name = f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{os.getpid()}"
    folder = stack.directory / FOLDER / name
    folder.mkdir(parents=True)
    try:
        yield folder
    except BaseException:
        shutil.rmtree(folder)
        raise


def _commands(stack: LocalStack, *, with_spark: bool) -> dict[str, str]:
    """Return the shell lines that look at what the demo leaves, as typed in a new shell here."""
    called = _chainctl()
    if stack.directory != default_directory({}):
        called = f"{DIRECTORY_VARIABLE}={shlex.quote(str(stack.directory))} {called}"
    commands = {command: f"{called} {command} --demo" for command in COMMANDS}
    if not with_spark:
        commands["verify"] += " --local"
    return commands


def _chainctl() -> str:
    """Return how this program is called from the current folder."""
    called = Path(sys.argv[0])
    if called.name != "chainctl" or not called.is_file():
        return shlex.join([sys.executable, "-m", "chainctl"])
    path = called.absolute()
    return shlex.quote(
        str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
    )
