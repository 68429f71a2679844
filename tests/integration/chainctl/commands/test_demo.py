"""The demo as a user runs it, on a stack of its own. Each complete one starts Spark: 20 to 60 s."""

import asyncio
import contextlib
import gzip
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from local_stack.last_demo import LastDemo
from orderchain.pytest_plugin import make_server_folder
from orderchain_demo.books import QUANTITY_MAX
from orderchain_demo.flow import order_flow
from tests.deadlines import deadline, until
from tests.integration.chainctl.conftest import Call
from tests.pages import ROOT, blocks_of

CHAINCTL = Path(sys.executable).with_name("chainctl")
SEED = 20_261

pytestmark = [
    pytest.mark.postgres,
    pytest.mark.kafka,
    pytest.mark.timeout(560),
]

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def stack_folder() -> Iterator[Path]:
    """The folder of a stack that the first demo starts, and that is stopped at the end."""
    folder = make_server_folder()
    yield folder / "stack"
    environment = os.environ | {"CHAINCTL_STACK_DIR": str(folder / "stack")}
    subprocess.run([CHAINCTL, "stack", "down"], env=environment, check=True)
    shutil.rmtree(folder)


@pytest.fixture
def environment(stack_folder: Path) -> dict[str, str]:
    """The test's environment, without settings that would lead to other servers."""
    clean = {name: text for name, text in os.environ.items() if not name.startswith("CHAINCTL_")}
    return clean | {"CHAINCTL_STACK_DIR": str(stack_folder)}


@pytest.fixture
def run(environment: dict[str, str]) -> Run:
    """Runs `chainctl` to its end."""
    return lambda *line: called([CHAINCTL, *line], env=environment)


def called(line: list[Any], **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(line, capture_output=True, text=True, check=False, **options)


def typed(command: str, summary: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    """Run a command of the summary as it is printed, in a shell that knows nothing else."""
    environment = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/")}
    return called(["bash", "-c", summary["commands"][command]], env=environment)


def lines_after_a_demo() -> list[str]:
    """Return the README's calls that look at what the last demo has left."""
    lines = [line for block in blocks_of(ROOT / "README.md") for line in block.text.splitlines()]
    return [line.partition("#")[0].strip() for line in lines if "--demo" in line]


def see_console(environment: dict[str, str]) -> Any:
    """Return what the console shows of the last demo, on a free port."""
    process = subprocess.Popen(
        [CHAINCTL, "console", "--demo", "--port", "0"],
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stderr is not None
        address = re.search(r"http://\S+/", process.stderr.readline())
        try:
            assert address, process.stderr.read()
            return httpx.get(f"{address[0]}api/state", timeout=60).json()
        finally:
            process.terminate()


@pytest.mark.spark
def test_demo_with_generated_orders_is_whole_and_leaves_what_it_says(
    run: Run, environment: dict[str, str]
) -> None:
    done = run("demo", "--orders", "20000", "--seed", str(SEED), "--json")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)

    assert summary["whole"] is True
    assert (summary["orders"], summary["seed"]) == (20_000, SEED)
    assert summary["digest"] == summary["digest_straight"]
    assert summary["book"]["events"] == 20_000
    assert summary["book"]["trades"] > 1_000

    link, receiver = summary["link"], summary["receiver"]
    assert link["last_dropped"] == 1
    assert link["dropped"] > 10
    assert min(link["repeated"], link["reordered"]) > 0
    # What is sent without a listener does not come; that may be nothing.
    assert summary["frames_sent"] >= link["frames"] > 0
    assert min(receiver["gaps"], receiver["rows_filled"], receiver["frames_duplicate"]) > 0
    assert receiver["rows_caught_up"] > 0
    assert summary["last_gap_shown_by"] in {"heartbeat", "poll"}

    assert (summary["verified_by"], summary["verified_clean"]) == ("Spark", True)
    assert summary["wrong_books"] == [], "Spark has rebuilt each book"
    large = [
        (at, order.symbol)
        for at, order in enumerate(order_flow(SEED, 20_000), 1)
        if order.qty > QUANTITY_MAX
    ]
    first = {each["group"]: each["id"] for each in summary["second_version"]}
    assert first == {symbol: at for at, symbol in reversed(large)}
    assert [source["rows"] for source in summary["verified"]["sources"]] == [20_000, 20_000]
    assert Path(summary["journal"]).read_bytes().count(b"\n") == 20_000

    seen = typed("status", summary)
    assert seen.returncode == 0, seen.stderr
    assert re.search(r"^head_persisted +20000$", seen.stdout, re.MULTILINE)
    received = typed("receive", summary)
    assert received.returncode == 0, received.stderr
    again = Path(summary["journal"]).with_name("journal-again.jsonl")
    assert again.read_bytes() == Path(summary["journal"]).read_bytes()
    verified = typed("verify", summary)
    assert verified.returncode == 0, verified.stderr
    for source in ("database", "topic", f"journal:{summary['journal']}"):
        assert f"  {source}: 20,000 rows, ids 1 to 20000: complete" in verified.stdout

    shown = [line.removeprefix(".venv/bin/chainctl ") for line in lines_after_a_demo()]
    local = "verify --demo --local"
    assert {*shown} == {f"{command} --demo" for command in (*summary["commands"], "console")} | {
        local
    }
    assert shown.index(local) < shown.index("verify --demo"), "the quick one comes first"
    assert run(*local.split()).returncode == 0
    chains = see_console(environment)["chains"]
    assert [chain["head_persisted"] for chain in chains.values()] == [20_000]


@pytest.mark.nightly
@pytest.mark.spark
def test_wrong_book_of_right_orders_is_named_by_symbol_and_id(run: Run) -> None:
    done = run("demo", "--orders", "6000", "--wrong-book", "--json")
    assert done.returncode == 1, done.stderr
    summary = json.loads(done.stdout)
    assert (summary["whole"], summary["verified_clean"]) == (False, True)
    (book,) = summary["wrong_books"]
    assert book["equal_id"] < 3_000 <= book["id"]
    line = f"Not whole: book of {book['group']}: it went wrong after id {book['equal_id']},"
    assert line in done.stderr
    assert run("demo", "--wrong-book", "--no-spark").returncode == 2


@pytest.mark.nightly
def test_demo_with_other_columns_and_no_spark_is_whole_and_says_so_in_its_table(
    run: Run, environment: dict[str, str], tmp_path: Path
) -> None:
    """Also where neither Java's Spark nor its Python package can be found."""
    environment["PYTHONPATH"] = str(tmp_path)
    (tmp_path / "pyspark.py").write_text("raise SystemExit('Spark was imported')")
    path = tmp_path / "readings.jsonl.gz"
    with gzip.open(path, "wt") as file:
        for number in range(300):
            file.write(json.dumps({"sensor": f"s{number % 7}", "value": number}) + "\n")
    faults = ("--loss", "0", "--duplicate", "0", "--reorder", "0")
    done = run("demo", "--no-spark", "--input", str(path), *faults)
    assert done.returncode == 0, done.stderr
    summary, _, commands = done.stdout.partition("\n\n")
    table = dict(re.split(r"  +", line, maxsplit=1) for line in summary.splitlines())
    assert table["book"].startswith("events 300, refused 300, trades 0,")
    assert table["frames dropped"].startswith("0 of ")
    assert table["verified by --local"] == "database and journal whole and equal"
    assert table["verdict"] == "WHOLE"
    for command in ("status --demo", "receive --demo", "verify --demo --local", "console --demo"):
        assert f"chainctl {command}  " in commands


class Started:
    """A demo under way."""

    def __init__(self, environment: dict[str, str], *arguments: str) -> None:
        self.process = subprocess.Popen(
            [CHAINCTL, "demo", *arguments],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def wait_for(self, beginning: str) -> None:
        """Wait until the demo says something; the timer of the test bounds it."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if line.startswith(beginning):
                return
        pytest.fail(f"the demo ended without a line {beginning!r}")

    def services(self) -> dict[str, int]:
        """Process ids of the demo's own processes by module, once the second service runs."""
        found: dict[str, int] = {}
        while "matching" not in found:
            for process_id in children_of(self.process.pid):
                with contextlib.suppress(FileNotFoundError):
                    command = Path(f"/proc/{process_id}/cmdline").read_bytes().decode()
                    if match := re.search(r"-m\0orderchain_demo\.(\w+)", command):
                        found[match[1]] = process_id
        return found


def children_of(process_id: int) -> list[int]:
    """The processes that one process has started: a bare machine has no `ps`."""
    tasks = Path(f"/proc/{process_id}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text(encoding="ascii").split()]


@contextlib.contextmanager
def started_demo(environment: dict[str, str], *arguments: str) -> Iterator[Started]:
    started = Started(environment, *arguments)
    try:
        yield started
    finally:
        started.process.kill()
        started.process.communicate()


@pytest.fixture
def demo(environment: dict[str, str]) -> Iterator[Started]:
    """A demo of many orders, which a test breaks off."""
    with started_demo(environment, "--orders", "100000") as started:
        yield started


def is_there(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.nightly
def test_demo_with_ctrl_c_ends_its_programs_and_leaves_the_stack_up(
    demo: Started, run: Run
) -> None:
    demo.wait_for("Killed the matching service")
    services = demo.services()
    demo.process.send_signal(signal.SIGINT)
    stdout, stderr = demo.process.communicate()
    assert demo.process.returncode == 130
    assert stdout == ""
    assert "Traceback" not in stderr
    assert not any(map(is_there, services.values()))
    assert run("stack", "status").returncode == 0


@pytest.mark.nightly
def test_demo_with_a_service_that_dies_says_so_and_could_not_complete(demo: Started) -> None:
    demo.wait_for("Killed the matching service")
    os.kill(demo.services()["matching"], signal.SIGKILL)
    stdout, stderr = demo.process.communicate()
    assert demo.process.returncode == 3
    assert stdout == ""
    last_line = stderr.splitlines()[-1]
    assert last_line == "chainctl: the matching service ended with signal 9: no word"


@pytest.mark.nightly
def test_demo_with_killed_parent_leaves_no_service_behind(demo: Started) -> None:
    demo.wait_for("Killed the matching service")
    services = demo.services()
    demo.process.kill()
    demo.process.wait()

    async def until_gone() -> None:
        async with deadline(30):
            await until(lambda: not any(map(is_there, services.values())))

    asyncio.run(until_gone())


@pytest.mark.parametrize(
    ("arguments", "noted"),
    [
        (["--loss", "1.5"], "'--loss': 1.5 is not a share from 0 to 1"),
        (["--duplicate", "nan"], "'--duplicate': nan is not a share from 0 to 1"),
        (["--reorder", "-0.1"], "'--reorder': -0.1 is not a share from 0 to 1"),
        (["--loss", "some"], "'--loss': 'some' is not a valid float"),
        (["--orders", "0"], "'--orders': 0 is not in the range"),
        (["--orders", "99999999999"], "'--orders': 99999999999 is not in the range"),
        (["--http", "65535"], "'--http': 127.0.0.1:65535 has no port of 1 to 65534"),
        (["--seed", "-1"], "'--seed': -1 is not in the range"),
        (["--orders", "5", "--input", "x.csv"], "--orders is for generated orders"),
        (["--input", "no-such-file.csv"], "no-such-file.csv"),
        (["surplus"], "surplus"),
    ],
)
def test_demo_with_wrong_arguments_is_refused_in_one_line_and_starts_nothing(
    arguments: list[str], noted: str, call: Call, tmp_path: Path
) -> None:
    done = call("demo", *arguments, settings={"CHAINCTL_STACK_DIR": str(tmp_path / "none")})
    assert done.code == 2
    assert noted in done.err
    assert len(done.err.splitlines()) == 1
    assert done.out == ""
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("command", ["status", "receive", "verify"])
def test_what_no_demo_has_left_is_looked_for_in_vain(
    command: str, call: Call, tmp_path: Path
) -> None:
    folder = tmp_path / "none"
    done = call(command, "--demo", settings={"CHAINCTL_STACK_DIR": str(folder)})
    assert done.code == 2
    assert (
        done.err
        == f"chainctl: --demo was {str(folder)!r}, expected the folder of a stack with a demo\n"
    )
    assert not folder.exists()


@pytest.mark.parametrize("line", ["--demo --config {}", "--config {} --demo"])
def test_demo_of_the_stack_that_a_config_file_names_is_taken(
    line: str, call: Call, tmp_path: Path
) -> None:
    config, folder = tmp_path / "one.toml", tmp_path / "none"
    config.write_text(f"stack_dir = '{folder}'\n")
    done = call("status", *line.format(config).split(), settings={})
    assert done.code == 2
    assert f"--demo was {str(folder)!r}" in done.err


@pytest.mark.parametrize("line", ["--demo --all-chains", "--all-chains --demo"])
def test_demo_with_all_chains_verifies_those_of_its_database(
    line: str, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = LastDemo(chain=1, journal=str(tmp_path / "j.jsonl"))
    address = "postgresql://auditor@127.0.0.1:1/none"
    servers = {"CHAINCTL_DATABASE": address, "CHAINCTL_GAP_DATABASE": address}
    monkeypatch.setattr("local_stack.last_demo.last_demo", lambda _: left)
    monkeypatch.setattr("local_stack.LocalStack.environment", lambda _: servers)
    done = call("verify", "--local", *line.split(), settings={})
    assert done.code == 2
    assert "127.0.0.1:1" in done.err


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "content", "heard"),
    [
        ("empty.csv", b"", "empty.csv"),
        ("cut.csv.gz", gzip.compress(b"a,b\n" + b"1,2\n" * 999, mtime=0)[:-9], "cut.csv.gz"),
        ("columns.csv", b"a,b\n1,2\n1,2,3\n", "line 3"),
    ],
)
def test_demo_with_a_file_that_cannot_be_read_is_refused_in_one_line_and_leaves_nothing(
    name: str, content: bytes, heard: str, call: Call, stack_folder: Path, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    settings = {"CHAINCTL_STACK_DIR": str(stack_folder)}
    left_before = set((stack_folder / "demo").glob("*"))
    done = call("demo", "--input", path, settings=settings)
    assert done.code == 2, done
    last_line = done.err.splitlines()[-1]
    assert last_line.startswith("chainctl: ")
    assert heard in last_line
    assert "Traceback" not in done.err
    assert "Sequencing" not in done.err
    assert set((stack_folder / "demo").glob("*")) == left_before
