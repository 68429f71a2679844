"""Does one wrong after the other, and shows those that no test notices: `make mutate`."""

import argparse
import os
import resource
import secrets
import shutil
import sys
import time
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from importlib import import_module
from pathlib import Path
from random import Random

import pytest

import local_stack.postgres
from chain_kernel.sql import LOGIN_ROLES
from local_stack.postgres import SUPERUSER, PostgresServer, PostgresServerConfig
from local_stack.process import free_port
from orderchain.pytest_plugin import make_server_folder

from .doing import LOADED, do
from .mutants import ROOT, Mutant, mutants_of

_STATEMENTS = "tests/contract/test_outbox_servers.py"

TARGETS = {
    "sequencer/core.py": """
        tests/unit/sequencer/test_core.py tests/unit/sequencer/test_lost_life.py
        tests/unit/sequencer/test_core_id_strategy.py tests/unit/sequencer/test_order_columns.py""",
    "sequencer/assembly.py": """
        tests/unit/sequencer/test_submission_answers.py tests/unit/sequencer/test_service.py
        tests/unit/sequencer/test_service_submit_each.py tests/unit/sequencer/intake
        tests/unit/sequencer/test_submission_batcher.py tests/unit/sequencer/test_leadership.py
        tests/unit/sequencer/keys""",
    "matcher_receiver/core.py": """
        tests/unit/matcher_receiver/test_core.py tests/unit/matcher_receiver/test_core_table.py
        tests/unit/matcher_receiver/test_core_dropped.py tests/unit/matcher_receiver""",
    "gapfill/batch_proof.py": "tests/unit/gapfill tests/contract/test_gap_source.py",
    "outbox/statuses.py": "tests/unit/outbox/test_statuses.py",
    "outbox/consumer/decisions.py": "tests/unit/outbox/consumer/test_decisions.py",
    "outbox/consumer/admission.py": """
        tests/contract/test_outbox.py tests/unit/outbox/testing -k memory""",
    "chain_kernel/model.py": """
        tests/unit/chain_kernel/test_model_link.py tests/unit/chain_kernel/test_kernel.py
        tests/unit/sequencer/test_core.py tests/unit/sequencer/keys/test_memory_repeats.py
        tests/unit/chain_kernel""",
    "sequencer/queries.sql": """
        tests/integration/sequencer/stores/test_fence_of_each_statement.py
        tests/contract/test_chain_store.py tests/contract/test_key_store.py""",
    "matcher_receiver/queries.sql": """
        tests/contract/test_checkpoint_store.py
        tests/integration/matcher_receiver/stores/test_postgres.py
        tests/integration/matcher_receiver/stores/test_postgres_head_reports.py""",
    "outbox/sql/store.sql": f"""
        {_STATEMENTS} tests/integration/outbox/sender/test_destinations.py""",
    "outbox/sql/prepared.sql": _STATEMENTS,
    "outbox/sql/checked_sender.sql": _STATEMENTS,
    "outbox/sql/inbox_queries.sql": _STATEMENTS,
    "outbox/sql/callback_queries.sql": _STATEMENTS,
    "outbox/sql/service.sql": _STATEMENTS,
    "outbox/sql/inbox.sql": _STATEMENTS,
    "outbox/sql/decision.sql": _STATEMENTS,
}
"""The tests of each source; where they are many, those that know it best come first."""

REASONS = Path(__file__).with_name("survivors.toml")

_SLOW_IMPORTS = ("aiokafka", "asyncpg", "hypothesis", "msgspec", "numpy", "uvloop")
"""What is no part of the engine is imported once, and not by the process of each wrong."""
_CPU_SECONDS = 300
"""More than any of the tests below take on the slowest machine."""
_OF_NO_USE = 99
_EMPTY = """
SELECT format('DROP DATABASE %I (FORCE)', datname) FROM pg_database
 WHERE datname ~ '^(template_|test_)'
\\gexec
"""


class Lane:
    """Runs tests in one process after the other, forked off; they share a PostgreSQL."""

    def __init__(self, closing: ExitStack) -> None:
        self._closing = closing
        self._server: PostgresServer | None = None

    def begin(self, path: str, mutant: Mutant | None) -> int:
        """Begin the tests of a source, with a wrong in it; return the process.

        A test that hangs ends by its own limit, as usual. Where a loop takes the error of that
        limit for one of its own, the process ends by its time on the CPU.
        """
        if path.endswith(".sql"):
            self._server = self._server or self._started()
            self._server.execute(_EMPTY)
        process = os.fork()
        if process == 0:
            try:
                os._exit(self._tested(path, mutant))
            finally:
                os._exit(_OF_NO_USE)
        return process

    def _started(self) -> PostgresServer:
        folder = make_server_folder()
        self._closing.callback(shutil.rmtree, folder)
        config = PostgresServerConfig(
            directory=folder / "postgres",
            port=free_port(),
            passwords={role: secrets.token_hex(16) for role in (SUPERUSER, *LOGIN_ROLES)},
            is_in_memory=True,
        )
        return self._closing.enter_context(PostgresServer(config))

    def _tested(self, path: str, mutant: Mutant | None) -> int:
        resource.setrlimit(resource.RLIMIT_CPU, (_CPU_SECONDS, _CPU_SECONDS))
        for stream in (1, 2):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
        if self._server is not None:
            # The fixture's: tests that start another have it from elsewhere.
            local_stack.postgres.PostgresServer = lambda _: nullcontext(self._server)  # type: ignore[misc, assignment]
        if mutant is not None:
            do(mutant)
        options = ["-q", "-x", "--assert=plain", "-p", "no:cacheprovider"]
        status = pytest.main([*options, *TARGETS[path].split()])
        return int(status) if LOADED or mutant is None else _OF_NO_USE


def survivors(drawn: list[Mutant], jobs: int) -> Iterator[Mutant]:
    """Yield those that no test notices. Raises RuntimeError if a run shows nothing."""
    # First of all without a wrong: tests that fail anyway would notice each.
    paths = dict.fromkeys(mutant.path for mutant in drawn)
    waiting: list[tuple[str, Mutant | None]] = [(path, None) for path in paths]
    waiting += [(mutant.path, mutant) for mutant in drawn]
    running: dict[int, tuple[Lane, str, Mutant | None]] = {}
    with ExitStack() as closing:
        lanes = [Lane(closing) for _ in range(jobs)]
        while waiting or running:
            while waiting and lanes:
                lane, (path, mutant) = lanes.pop(), waiting.pop(0)
                running[lane.begin(path, mutant)] = lane, path, mutant
            process, status = os.wait()
            lane, path, mutant = running.pop(process)
            lanes.append(lane)
            code = os.waitstatus_to_exitcode(status)
            if code == _OF_NO_USE or (mutant is None and code != 0):
                raise RuntimeError(f"the tests of {path} show nothing: {mutant or 'they fail'}")
            if mutant is not None and code == 0:
                yield mutant


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="a part of a path, or of what is printed")
    parser.add_argument("--at-most", type=int, default=25, help="of one file, drawn by --seed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    given = parser.parse_args()
    reasons = tomllib.loads(REASONS.read_text(encoding="utf-8"))
    drawn: list[Mutant] = []
    for path in TARGETS:
        found = [mutant for mutant in mutants_of(path) if given.only in mutant.name]
        few = min(len(found), given.at_most)
        drawn += sorted(Random(given.seed).sample(found, few), key=lambda each: each.number)
    for name in _SLOW_IMPORTS:
        import_module(name)
    os.chdir(ROOT)
    began, unexplained = time.monotonic(), 0
    for mutant in survivors(drawn, given.jobs):
        reason = reasons.get(mutant.name, "")
        unexplained += not reason
        show(f"survives: {mutant.name}{f' ({reason})' if reason else ''}")
    seconds = time.monotonic() - began
    show(f"{len(drawn)} wrongs in {seconds:.0f} s, {unexplained} survive without a reason")
    return 1 if unexplained else 0


def show(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
