"""Commands as a container runs them: under a number without a name or a home, and as process 1."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pages import ROOT
from tests.programs import completed

from .conftest import Start
from .monitor_pages import address_of, children_of, serving_for, until_ready, until_shown

pytestmark = pytest.mark.skipif(
    subprocess.run(["unshare", "--user", "true"], capture_output=True).returncode != 0,
    reason="no user namespace may be made here: the kernel refuses them in a chroot",
)

NAMELESS = ("unshare", "--user", "--map-user=54321", "--map-group=54321")
FIRST = (
    "unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc"
)  # fmt: skip
"""What runs a program in namespaces of its own."""

SLOW_IMPORT = """
import sys
print("importing", flush=True)
sys.stdin.read()
"""

EACH_EXAMPLE = """
from chainctl.main import main
from chainctl.options import EXAMPLES
from tests.command_lines import command_lines
for path, example in EXAMPLES.items():
    (words,) = command_lines(f"chainctl {path} {example}")
    if words[0] not in {"bench", "demo", "quickstart", "stack"}:  # which start servers
        assert main(words) in {0, 1, 2}, path
"""


def nameless(
    folder: Path, *words: object, settings: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    """Call `chainctl` as an account that is a number alone."""
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), **settings}
    command = (*NAMELESS, sys.executable, "-m", "chainctl", *words)
    return completed(*command, cwd=folder, env=environment)


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


def test_each_command_says_to_an_account_without_a_name_what_is_wrong(tmp_path: Path) -> None:
    """No server is there: what is wrong is one of them, or a file of the example."""
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(ROOT),
        "CHAINCTL_DATABASE": "postgresql://u@127.0.0.1:1/d",
        "CHAINCTL_KAFKA": "127.0.0.1:1",
        "CHAINCTL_CONNECT_SECONDS": "0.5",
    }
    command = (*NAMELESS, sys.executable, "-c", EACH_EXAMPLE)
    done = completed(*command, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    assert "internal error" not in done.stderr


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
            (first,) = children_of(process.pid)
            os.kill(first, number)
            _, stderr = process.communicate()
        finally:
            process.kill()
    assert process.returncode == code
    assert stderr == ""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_health_of_process_1_is_served_and_its_child_outlives_nothing(
    start: Start, module_settings: dict[str, str], filled_once: int, tmp_path: Path,
    number: signal.Signals,
) -> None:  # fmt: skip
    process = start(
        "receive", "--chain", filled_once, "--name", "r1", "--output", tmp_path / "j.jsonl",
        "--follow", "--http", 0, "--log-format", "json", settings=module_settings, within=FIRST,
    )  # fmt: skip
    address = address_of(process)
    until_ready(address)
    (first,) = children_of(process.pid)
    serving = serving_for(first)
    os.kill(serving, signal.SIGKILL)
    again = serving_for(first, but=serving)
    until_shown(f"{address}/livez", 200)
    until_shown(f"{address}/metrics", 200, "orderchain_receiver_live")
    assert children_of(first) == [again], "the one that was killed is waited for"
    os.kill(first, number)
    _, stderr = process.communicate()
    assert process.returncode == 143 or number is signal.SIGKILL, stderr
    assert not Path(f"/proc/{again}").exists()
