"""Runs a demo from end to end."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from chainctl.output import Stopwatch, progress, talk
from chainctl.running import run_async
from demo.chain_setup import set_stage
from demo.preparation import check_input, preparing
from demo.scenario import Plan, ScenarioOutcome, play
from demo.spark_check import EVERY_SOURCE, SparkVerdict, verify, verify_arguments
from demo.summary import Summary, summarize
from local_stack import LocalStack, default_directory
from local_stack.folders import make_shared_folder, service_account
from orderchain.text import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from demo.options import DemoOptions


FOLDER: Final = "demo"
"""The folder below the stack's where the demos keep their inputs and journals."""


def run_demo(stack: LocalStack, options: DemoOptions) -> Summary:
    """Run the whole demo; the stack stays up. Every process of its own has ended at the return.

    Raises InputError for an input that cannot be read, before anything is sequenced; StackError,
    OrderchainError when it could not be completed.
    """
    watch = Stopwatch()
    if options.input is not None:
        check_input(options.input)
    with _demo_folder(stack) as folder, preparing(options, folder) as preparation:
        stack.up(talk)
        talk("Reading the input" if options.input else "Generating orders")
        prepared = preparation.result()
        stage = run_async(set_stage(stack))
    plan = Plan(
        stage=stage, prepared=prepared, faults=options.faults(), journal=folder / "journal.jsonl"
    )
    phases = {"stack and input": watch.seconds}
    outcome, verdict = run_async(_perform(plan, phases))
    return summarize(
        plan, options, outcome, verdict, commands=_commands(stack, plan), phases=phases
    )


async def _perform(plan: Plan, phases: dict[str, float]) -> tuple[ScenarioOutcome, SparkVerdict]:
    """Play, then have Spark judge; note in `phases` how long each took."""
    stage, rows = plan.stage, plan.rows
    watch = Stopwatch()
    talk(
        f"Sequencing {counted(rows, 'order')} into chain {stage.chain_id}, seed {plan.faults.seed}"
    )
    with progress("orders", rows) as bar:
        outcome = await play(plan, bar)
    phases["orders"] = watch.seconds
    talk("Spark verifies database and journal")
    verdict = await verify(stage, plan.journal, rows)
    phases["Spark"] = watch.seconds - phases["orders"]
    return outcome, verdict


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


def _commands(stack: LocalStack, plan: Plan) -> dict[str, str]:
    """Return the shell lines that look at what the demo leaves, each ready to paste."""
    chainctl = _chainctl()
    environment = [*chainctl, "stack", "env"]
    if stack.directory != default_directory({}):
        environment += ["--stack-dir", str(stack.directory)]
    chain = str(plan.stage.chain_id)
    again = plan.journal.with_name("journal-again.jsonl")
    receive = [*chainctl, "receive", "--chain", chain, "--output", str(again)]
    return {
        "settings": f'eval "$({shlex.join(environment)})"',
        "receive": shlex.join(receive),
        "verify": shlex.join(
            [*chainctl, *verify_arguments(plan.stage, plan.journal, EVERY_SOURCE)]
        ),
    }


def _chainctl() -> list[str]:
    """Return how this program was called, from any folder."""
    called = Path(sys.argv[0])
    if called.name == "chainctl" and called.is_file():
        return [str(called.absolute())]
    return [sys.executable, "-m", "chainctl"]
