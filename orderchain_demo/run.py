"""Runs a demo from end to end."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from chain_kernel.errors import SettingError
from chain_kernel.testing.memory_chain import LinkDial
from chain_kernel.text import counted
from chainctl.event_loop import run_async
from chainctl.monitor_server import Address
from chainctl.output import Stopwatch, progress, talk
from local_stack import LocalStack, default_directory
from local_stack.folders import DIRECTORY_VARIABLE, make_shared_folder, service_account
from local_stack.last_demo import FOLDER, LastDemo, leave_demo
from orderchain_demo.feed import DemoInput, generated_input, read_input
from orderchain_demo.scenario import RECEIVER, Plan, play, set_up_chain
from orderchain_demo.summary import Summary, summarize
from orderchain_demo.verify import VerifyJob, start_spark, verified

if TYPE_CHECKING:
    from collections.abc import Iterator

COMMANDS: Final = {
    "status": "heads, leader and receivers of the chain",
    "receive": "the whole chain once more, in order, into a journal of its own",
    "verify": "verifies database, topic and journal, and compares them",
    "console": "all of it live in a browser, on loopback",
}
"""The commands that look at what a demo has left, and what they show."""


class DemoOptions(Struct, frozen=True, kw_only=True):
    """Options of a demo."""

    input: Path | None
    """File of orders; None: they are generated."""
    orders: int
    """Orders to generate."""
    dial: LinkDial
    """Faults of the link."""
    seed: int
    """Seed of the generated orders and of the link's faults."""
    with_spark: bool = True
    """True if Spark verifies; otherwise the local verifier does."""
    has_wrong_book: bool = False
    """True if the matching service loses an order of one book: the replay is to find it."""
    http: Address | None = None
    """The address at which the sequencing service serves its metrics, the matching service at the
    next port."""

    @property
    def verifier(self) -> str:
        """The verifier's name, for people."""
        return "Spark" if self.with_spark else "--local"


def run_demo(stack: LocalStack, options: DemoOptions) -> Summary:
    """Run the whole demo; the stack stays up. Every program of its own has ended at the return.

    Raises InputError for an input that cannot be read, before anything is sequenced; StackError,
    OrderchainError when it could not be completed.
    """
    watch, verifier = Stopwatch(), options.verifier
    given = None if options.input is None else _read(options.input)
    with ExitStack() as programs:
        spark = None
        if options.with_spark:
            rows = options.orders if given is None else given.rows
            spark = programs.enter_context(start_spark(rows))
        with _demo_folder(stack) as folder:
            if given is None:
                talk("Generating orders")
                with progress("input", options.orders) as bar:
                    orders = generated_input(folder, options.seed, options.orders, bar.move_to)
            else:
                orders = given
            stack.up(talk)
            setup = run_async(set_up_chain(stack))
        plan = Plan(
            setup=setup,
            orders=orders,
            journal=folder / "journal.jsonl",
            dial=options.dial,
            seed=options.seed,
            http=options.http,
            has_wrong_book=options.has_wrong_book,
        )
        phases = {"stack and input": watch.seconds}
        talk(f"Sequencing {counted(orders.rows, 'order')} into chain {setup.chain_id}, "
             f"seed {plan.seed}")  # fmt: skip
        with progress("orders", orders.rows) as bar:
            outcome = run_async(play(plan, bar))
        phases["orders"] = watch.seconds - sum(phases.values())
        job = VerifyJob(
            database=setup.audit_database,
            chain_id=setup.chain_id,
            receiver=RECEIVER,
            journal=str(plan.journal),
            rows=orders.rows,
        )
        talk(f"Verifying database and journal: {verifier}")
        with progress("verifying", None, is_awaited=True) as bar:
            bar.move_to(0, verifier)
            report = verified(job, spark)
        phases[verifier] = watch.seconds - sum(phases.values())
    leave_demo(stack, LastDemo(chain=setup.chain_id, journal=str(plan.journal)))
    commands = _commands(stack, with_spark=options.with_spark)
    return summarize(plan, outcome, report, verifier, commands=commands, phases=phases)


def _read(path: Path) -> DemoInput:
    """Read the file that was given, before anything is made or started."""
    with progress("input", None) as bar:
        given = read_input(path, bar.move_to)
    talk(f"Read {counted(given.rows, 'order')}")
    return given


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
    is_usual = False
    with suppress(SettingError):  # an account without a home folder has no usual one
        is_usual = stack.directory == default_directory({})
    if not is_usual:
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
