"""Commands as a container runs them: under a number without a name or a home, and as process 1."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pages import ROOT

NAMELESS = ("unshare", "--user", "--map-user=54321", "--map-group=54321")
FIRST = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child")
"""What runs a program in namespaces of its own."""

SLOW_IMPORT = """
import sys
print("importing", flush=True)
sys.stdin.read()
"""


def nameless(
    folder: Path, *words: object, settings: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    """Call `chainctl` as an account that is a number alone."""
    return subprocess.run(
        [*NAMELESS, sys.executable, "-m", "chainctl", *map(str, words)],
        cwd=folder,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), **settings},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.postgres
@pytest.mark.kafka
@pytest.mark.orderchain(chains=[7])
def test_commands_work_without_a_name_and_a_home(
    tmp_path: Path, orderchain_environment: dict[str, str]
) -> None:
    (tmp_path / "orders.csv").write_text("symbol,qty\nALPHA,1\nBRAVO,2\n")
    why = ("--reason", "a test", "--dry-run")
    for words in (
        ("chain", "list"),
        ("sequence", "--chain", 7, "--input", "orders.csv"),
        ("receive", "--chain", 7, "--output", "journal.jsonl", "--name", "audit"),
        ("status", "--chain", 7),
        ("receivers", "forget", "audit", "--chain", 7, *why),
        ("verify", "--chain", 7, "--source", "journal:journal.jsonl", "--source", "database",
         "--local"),
    ):  # fmt: skip
        done = nameless(tmp_path, *words, settings=orderchain_environment)
        assert done.returncode == 0, (words, done.stderr)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("stack", "status"), "XDG_DATA_HOME was '', expected an absolute folder: this account"),
        (("stack", "status", "--stack-dir", "~/stack"), "stack_dir was '~/stack', expected a"),
        (("status", "--database", "host=127.0.0.1"), "user of database was '', expected a login"),
        (("status", "--database", "service=orders"), "service of database was 'orders', expected"),
        (("verify", "--chain", "1", "--source", "parquet:/"), "account was 54321, expected one"),
    ],
)
def test_what_needs_a_name_or_a_home_says_so(
    tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    done = nameless(tmp_path, *words, settings={})
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith(f"chainctl: {said}")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_signal_during_the_imports_ends_process_1(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    """The kernel drops a signal to process 1 that has no handler."""
    (tmp_path / "click.py").write_text(SLOW_IMPORT)
    with subprocess.Popen(
        [*FIRST, sys.executable, "-m", "chainctl", "status"],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "importing\n"
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
            os.kill(int(children), number)
            _, stderr = process.communicate()
        finally:
            process.kill()
    assert process.returncode == code
    assert stderr == ""
