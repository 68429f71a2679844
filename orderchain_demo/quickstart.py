"""`chainctl quickstart`: the first half minute, on PostgreSQL alone."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
from msgspec import json

from chain_kernel.errors import InputError, OrderchainError, SchemaError
from chain_kernel.sql import OWNER
from chainctl.commands.stack import stack_of
from chainctl.database import connected_to
from chainctl.event_loop import run_async
from chainctl.exits import ExitCode
from chainctl.options import Command, uses_settings
from chainctl.output import Stopwatch, data, talk
from chainctl.schema.parts import is_lacking

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chainctl.settings import Settings

FOLDER: Final = "orderchain-quickstart"
ORDERS: Final = 1_000
BEFORE_THE_KILL: Final = 600
LOST: Final = 400
"""The line of the journal that is taken out, for `verify` to name."""
SEED: Final = 7
DEADLINE_SECONDS: Final = 60.0
"""For the receiver that is killed: until it has written the orders of before."""
LOG: Final = "receive.log"
CHAINCTL: Final = (sys.executable, "-m", "chainctl")


@click.command(cls=Command)
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    help=f"Where orders and journals are written: a new one.  [default: {FOLDER}, or {FOLDER}-N]",
)
@uses_settings("stack_dir")
def quickstart(settings: Settings, folder: Path | None) -> ExitCode:
    """A chain on PostgreSQL alone: no Kafka, no Java, no Spark.

    Starts a PostgreSQL on loopback, makes a chain, sequences a thousand orders, kills a receiver
    and has another one go on, takes one order out of a copy of its journal, and has `verify` name
    it. Each command is shown before it runs. The server stays up, with the chain. Exit code 0 only
    if all came out as it should.
    """
    watch = Stopwatch()
    folder = _new_folder(folder)
    stack = stack_of(settings)
    stack.up(talk, with_kafka=False)
    # No setting of other servers: the commands see this one alone.
    environment = {name: text for name, text in os.environ.items() if "CHAINCTL_" not in name}
    environment |= {"CHAINCTL_STACK_DIR": str(stack.directory), **stack.environment()}
    environment.pop("CHAINCTL_KAFKA", None)
    steps = _Steps(environment, folder)
    chain_id = _play(steps)
    data("")
    data(f"All as it should be, after {watch.seconds:.0f} s. To look around:")
    _show_what_next(str(stack.directory) if settings.stack_dir else "", folder, chain_id)
    return ExitCode.CLEAN


def _new_folder(named: Path | None) -> Path:
    """Make the folder, and return it. Raises InputError."""
    numbered = (Path(f"{FOLDER}-{number}") for number in count(2))
    names = [named] if named is not None else chain((Path(FOLDER),), numbered)
    for folder in names:
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            expected = f"a folder that can be made ({error.strerror}): --folder"
            raise InputError("--folder", str(folder), expected) from error
        return folder
    raise InputError("--folder", str(named), "a folder that is not there yet")


def _show_what_next(stack_dir: str, folder: Path, chain: int) -> None:
    words = [f"cd {shlex.quote(str(folder))}"]
    if sys.prefix != os.environ.get("VIRTUAL_ENV"):
        words.append(f'PATH="$PATH:{Path(sys.executable).parent}"')
    if stack_dir:
        words.append(f"export CHAINCTL_STACK_DIR={shlex.quote(stack_dir)}")
    data("  " + " && ".join([*words, 'eval "$(chainctl stack env)"']))
    for line, shows in {
        f"chainctl status --chain {chain}": "head, leader and receivers",
        f"chainctl tail --chain {chain}": "the last orders",
        f"chainctl receive --chain {chain} --output live.jsonl --follow": "orders as they come",
        f"chainctl verify --local --chain {chain} --source database --seals": "every seal again",
        'chainctl stack up && eval "$(chainctl stack env)"': "adds Kafka",
        f"chainctl chain create {chain}": "then makes the topic; the next leader publishes to it",
        "chainctl schema apply --part outbox": "then messages (tutorial, 6), which need Kafka",
        "chainctl stack down": "stops the server, and keeps the chain",
    }.items():
        data(f"  {line:64}  {shows}")
    data("The tutorial in the documents goes on from here.")


def _play(steps: _Steps) -> int:
    """Run all steps, and return the chain. Raises OrderchainError where one came out wrong."""
    steps.run("schema", "apply")
    steps.check_schema()
    chain = run_async(_next_chain(steps.environment["CHAINCTL_DATABASE"]))
    of_chain = ("--chain", str(chain))
    steps.run("chain", "create", str(chain))
    first, second = steps.write_orders()
    journal = "journal.jsonl"
    receive = ("receive", *of_chain, "--output", journal, "--name", "quickstart")
    killed = steps.start(*receive, "--follow")
    try:
        steps.run("sequence", *of_chain, "--input", first)
        steps.until_lines(journal, BEFORE_THE_KILL, killed)
    finally:
        killed.kill()
        killed.wait()
    steps.show(
        "# The receiver was killed by SIGKILL. Meanwhile more orders come, from a new leader:"
    )
    data("# its ids begin far above the old ones. What comes before an order is its pid.")
    steps.run("sequence", *of_chain, "--input", second)
    steps.run(*receive)
    lost = steps.take_out(journal, "gap.jsonl")
    verify = ("verify", "--local", *of_chain, "--source", "database", "--source")
    steps.run(*verify, f"journal:{journal}")
    found = steps.run(*verify, "journal:gap.jsonl", exit_code=ExitCode.FINDINGS)
    if f"order {lost} is missing" not in found:
        raise OrderchainError(f"verify did not name order {lost}, which was taken out")
    return chain


async def _next_chain(database: str) -> int:
    async with connected_to(database, 10.0, OWNER) as connection:
        found = await connection.fetchval("SELECT coalesce(max(chain_id), 0) + 1 FROM chain_head")
        return int(found)


class _Steps:
    """Commands as a user types them, in a folder of their own."""

    def __init__(self, environment: dict[str, str], folder: Path) -> None:
        self.environment = environment
        self.folder = folder

    def show(self, line: str) -> None:
        """Show what is done, among the output of the commands."""
        data("")
        data(line)
        sys.stdout.flush()

    def run(self, *words: str, exit_code: int = 0) -> str:
        """Run a command, show it and its output, and return that.

        Raises OrderchainError for another exit code.
        """
        self.show(f"$ chainctl {shlex.join(words)}")
        done = self._ended(words)
        sys.stdout.write(done.stdout)
        sys.stdout.flush()
        if done.returncode != exit_code:
            raise OrderchainError(
                f"`chainctl {shlex.join(words)}` ended with {done.returncode}, not {exit_code}"
            )
        return done.stdout

    def check_schema(self) -> None:
        """Raise SchemaError for the tables of an earlier checkout."""
        lacking = filter(is_lacking, self._ended(("schema", "check")).stdout.splitlines())
        if (first := next(lacking, None)) is not None:
            expected = "this version's (`chainctl stack reset` removes what is there)"
            raise SchemaError("schema", first, expected)

    def _ended(self, words: Sequence[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*CHAINCTL, *words],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        """Begin a command that goes on, and show it."""
        self.show(f"$ chainctl {shlex.join(words)} &")
        with (self.folder / LOG).open("wb") as log:
            return subprocess.Popen(
                [*CHAINCTL, *words],
                cwd=self.folder,
                env=self.environment,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def until_lines(self, name: str, count: int, writer: subprocess.Popen[bytes]) -> None:
        """Wait until `writer` has written so many lines. Raises OrderchainError where it ends."""
        end = time.monotonic() + DEADLINE_SECONDS
        path = self.folder / name
        while not path.exists() or path.read_bytes().count(b"\n") < count:
            if writer.poll() is not None or time.monotonic() > end:
                said = (self.folder / LOG).read_text(errors="replace").strip().splitlines()
                why = said[-1] if said else "it said nothing"
                raise OrderchainError(f"the receiver has not written {count} orders: {why}")
            time.sleep(0.05)

    def write_orders(self) -> tuple[str, str]:
        """Write the orders, and return the two files."""
        from orderchain_demo.flow import csv_lines

        header, *orders = csv_lines(SEED, ORDERS)
        for name, part in (
            ("morning.csv", orders[:BEFORE_THE_KILL]),
            ("afternoon.csv", orders[BEFORE_THE_KILL:]),
        ):
            (self.folder / name).write_text("".join([header, *part]), encoding="utf-8")
        return "morning.csv", "afternoon.csv"

    def take_out(self, journal: str, damaged: str) -> int:
        """Copy the journal without one line, and return the id that was there."""
        lines = (self.folder / journal).read_bytes().splitlines(keepends=True)
        lost = int(json.decode(lines.pop(LOST))["id"])
        (self.folder / damaged).write_bytes(b"".join(lines))
        self.show(f"$ grep -v '\"id\":{lost},' {journal} > {damaged}")
        return lost
