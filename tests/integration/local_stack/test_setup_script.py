"""The set-up script, run against stand-ins for the system's programs."""

import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.programs import completed

SCRIPT = Path(__file__).parents[3] / "tools/setup.sh"

PYTHON = """\
case "$*" in
  *version_info*) if [ -e "$CALLS.venv" ]; then exit 0; fi; printf 'python3.11-venv\\n' ;;
  *ensurepip*) [ -e "$CALLS.venv" ] ;;
  *"-m venv"*)
    mkdir -p .venv/bin && cp "$0" .venv/bin/python && echo "$PWD/.venv/" >.venv/bin/pip
    chmod +x .venv/bin/pip && echo venv >>"$CALLS" ;;
  *tomllib*) echo "requirements of $3" >>"$CALLS" ;;
  *"-m pip"*pyspark*) echo pip pyspark >>"$CALLS" ;;
  *"-m pip"*--require-hashes*) echo pip by hashes >>"$CALLS" ;;
  *"-m pip"*) echo pip >>"$CALLS" ;;
  *) echo "$2" >>"$CALLS" ;;
esac
"""


class Machine:
    """A project folder, and a PATH whose first programs are ours."""

    def __init__(self, folder: Path) -> None:
        self.project = folder / "project"
        self.programs = folder / "bin"
        self.calls_path = folder / "calls"
        self.programs.mkdir()
        (self.project / "tools").mkdir(parents=True)
        shutil.copy(SCRIPT, self.project / "tools/setup.sh")
        shutil.copy(SCRIPT.with_name("test_servers.sh"), self.project / "tools/test_servers.sh")
        (self.project / "speedups/src").mkdir(parents=True)
        for name in ("setup.py", "src/speed.c"):
            (self.project / "speedups" / name).touch()
        (self.project / "pyproject.toml").write_text("[project]\n")
        (self.project / "constraints.txt").write_text("# none\n")
        (self.project / "constraints-hashed.txt").write_text("# none\n")
        for version in ("3.14", "3.13", "3.12"):
            self.has_program(f"python{version}", "exit 1")
        self.has_program("python3.11", PYTHON)
        self.has_program("java", "echo 'openjdk version \"17.0.1\"' >&2")
        self.has_program("sudo", "exit 1")
        self.has_program("apt-cache", "exit 1")
        self.has_program("apt-get", 'echo "apt-get $*" >>"$CALLS"')
        self.has_program("id", "echo 1000")
        servers = "redis-server pgbouncer promtool initdb chromium nginx curl"
        for program in servers.split():
            self.has_program(program, "exit 1")
        self.redis_server = "redis-server"
        self.chromium = "chromium"
        self.has_venv_module()

    def has_program(self, name: str, script: str) -> None:
        (self.programs / name).write_text(f"#!/bin/sh\n{script}\n")
        (self.programs / name).chmod(0o755)

    def has_venv_module(self, *, there: bool = True) -> None:
        marker = Path(f"{self.calls_path}.venv")
        marker.touch() if there else marker.unlink()

    def set_up(self, script: str = "setup.sh", *level: str) -> subprocess.CompletedProcess[str]:
        return completed(self.project / "tools" / script, *level, env=self.environment())

    def environment(self) -> dict[str, str]:
        return {
            "PATH": f"{self.programs}:{os.defpath}",
            "CALLS": str(self.calls_path),
            "TMPDIR": str(self.project.parent),
            "REDIS_SERVER": self.redis_server,
            "CHROMIUM": self.chromium,
            "CC": str(self.programs / "cc"),
        }

    def calls(self) -> list[str]:
        calls = self.calls_path.read_text().splitlines() if self.calls_path.exists() else []
        self.calls_path.unlink(missing_ok=True)
        return calls


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def until(happened: Callable[[], bool]) -> None:
    """Wait until it has happened; the timer of the test bounds it."""
    while not happened():
        threading.Event().wait(0.02)


JARS = "local_stack.jars"
EVERYTHING = {"venv", "pip by hashes", "pip", "pip pyspark", JARS}


def test_setup_makes_everything_once_and_is_silent_then(machine: Machine) -> None:
    first = machine.set_up()
    assert first.returncode == 0, first.stderr
    calls = machine.calls()
    assert set(calls) == EVERYTHING
    assert len(calls) == len(EVERYTHING)
    assert calls[0] == "venv"
    assert calls[-1] == JARS
    assert "no C compiler" in first.stderr
    for level in ("all", "demo"):
        again = machine.set_up("setup.sh", level)
        assert (again.returncode, again.stdout, again.stderr) == (0, "", "")
    assert machine.calls() == []


def test_setup_with_a_compiler_builds_the_compiled_functions(machine: Machine) -> None:
    machine.has_program("cc", "exit 1")
    machine.has_program(
        "python3.11",
        PYTHON.replace("case", 'case "$*" in *sysconfig*) echo "$CALLS.h"; exit; esac; case', 1),
    )
    headers = Path(f"{machine.calls_path}.h")
    headers.mkdir()
    (headers / "Python.h").touch()
    done = machine.set_up()
    assert (done.returncode, "compiler" in done.stderr) == (0, False)
    assert machine.calls().count("pip") == 2


@pytest.mark.parametrize(
    ("level", "calls"),
    [
        ("light", {"requirements of cli,web,stack", "pip", JARS}),
        ("demo", {"requirements of cli,web,stack,spark", "pip", "pip pyspark", JARS}),
        ("site", {"requirements of docs", "pip"}),  # needs no Java
    ],
)
def test_setup_of_a_level_makes_its_part_and_leaves_the_rest_to_the_setup_of_all(
    level: str, calls: set[str], machine: Machine
) -> None:
    if level == "site":
        machine.has_program("java", "exit 127")
    done = machine.set_up("setup.sh", level)
    assert done.returncode == 0, done.stderr
    assert set(machine.calls()) == {"venv", *calls}
    assert machine.set_up("setup.sh", level).stderr == ""
    assert machine.calls() == []
    machine.has_program("java", "echo 'openjdk version \"17.0.1\"' >&2")
    assert machine.set_up("setup.sh", "all").returncode == 0
    made = {"venv", "pip pyspark", JARS} if level == "demo" else {"venv"}
    assert set(machine.calls()) == EVERYTHING - made
    if level != "demo":
        (machine.project / f".venv/.setup-{level}").unlink()  # another holds all of it
    for again in ("all", level):
        assert machine.set_up("setup.sh", again).stderr == ""
    assert machine.calls() == []


def test_setup_with_too_little_disk_says_so_before_it_fetches_anything(machine: Machine) -> None:
    machine.has_program("df", "echo Filesystem; echo /dev/disk 9 9 2999999 1% /")
    done = machine.set_up("setup.sh", "demo")
    assert done.returncode == 2
    said = f"setup: {machine.project} has 2999 MB free, the set-up needs 3000 MB there\n"
    assert done.stderr == said
    assert machine.calls() == []
    assert machine.set_up("setup.sh", "light").returncode == 0


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        (
            "WARNING: Retrying after SSLError(SSLCertVerificationError(1, '[SSL: "
            "CERTIFICATE_VERIFY_FAILED] unable to get local issuer certificate'))\n"
            "ERROR: HTTPSConnectionPool(host='index.example', port=443): Max retries exceeded\n"
            "ERROR: No matching distribution found for asyncpg",
            ": it does not trust the certificate of index.example. A proxy's own? PIP_CERT and "
            "SSL_CERT_FILE name the file of its CA",
        ),
        ("OSError: [Errno 28] No space left on device", ": the disk is full"),
        (
            "HTTPSConnectionPool(host='index.example', port=443): NameResolutionError",
            ": no connection to index.example. HTTPS_PROXY and PIP_INDEX_URL name another way",
        ),
        ("something else", ""),
    ],
)
def test_setup_that_fails_names_the_cause_last(machine: Machine, said: str, cause: str) -> None:
    (machine.project / "said").write_text(said + "\n")
    broken = PYTHON.replace("echo pip >", "cat said; false >")
    machine.has_program("python3.11", broken)
    done = machine.set_up("setup.sh", "light")
    assert done.returncode == 3
    last = done.stderr.splitlines()[-1]
    assert last == f"setup: fetching Python packages (50 MB): failed{cause}"


def test_setup_with_ctrl_c_says_one_line_and_ends_what_it_began(machine: Machine) -> None:
    blocked = 'echo $$ >"$CALLS.blocked"; exec sleep 600; echo pip >'
    machine.has_program("python3.11", PYTHON.replace("echo pip >", blocked))
    process = subprocess.Popen(
        [machine.project / "tools/setup.sh", "light"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=machine.environment(),
    )  # fmt: skip
    marker = Path(f"{machine.calls_path}.blocked")
    with process:
        until(lambda: marker.exists() and marker.read_text().endswith("\n"))
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert stderr.splitlines()[-1] == (
        "setup: interrupted; the next call goes on with what is here"
    )
    until(lambda: not Path(f"/proc/{int(marker.read_text())}").exists())


@pytest.mark.parametrize("changed", ["pyproject.toml", "constraints.txt", "constraints-hashed.txt"])
def test_setup_after_a_change_installs_again_into_the_same_venv(
    machine: Machine, changed: str
) -> None:
    machine.set_up()
    machine.calls()
    with (machine.project / changed).open("a") as file:
        file.write("# changed\n")
    assert machine.set_up().returncode == 0
    assert set(machine.calls()) == EVERYTHING - {"venv"}


def test_setup_of_a_moved_project_makes_a_new_venv(machine: Machine) -> None:
    machine.set_up()
    machine.calls()
    machine.project = machine.project.rename(machine.project.with_name("elsewhere"))
    assert machine.set_up().returncode == 0
    assert machine.calls()[0] == "venv"


def test_setup_without_root_says_in_one_line_what_to_install(machine: Machine) -> None:
    machine.has_venv_module(there=False)
    machine.has_program("java", "echo 'openjdk version \"11.0.2\"' >&2")
    done = machine.set_up()
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "python3.11-venv default-jre-headless" in done.stderr
    assert machine.calls() == []


def test_setup_as_root_installs_what_is_missing(machine: Machine) -> None:
    machine.has_program("id", "echo 0")
    machine.has_program("java", 'grep -qs jre "$CALLS" && echo \'version "21.0.1"\' >&2')
    done = machine.set_up()
    assert done.returncode == 0, done.stderr
    installs = [call for call in machine.calls() if call.startswith("apt-get")]
    assert installs[0].endswith(" update")
    assert installs[1].endswith(" install -y --no-install-recommends default-jre-headless")


@pytest.mark.parametrize(
    ("missing", "apt_get", "installed", "said"),
    [
        ([], "exit 1", [], ""),
        (["redis_server"], 'echo "apt-get $*" >>"$CALLS"', ["redis-server"], ""),
        (["redis_server"], "exit 100", [],
         "not installed: redis-server; the tests that need them are skipped"),
        (["redis_server", "chromium"],
         'echo "apt-get $*" >>"$CALLS"; case "$*" in *chromium*) exit 100 ;; esac',
         ["redis-server chromium", "redis-server", "chromium"], ""),
    ],
)  # fmt: skip
def test_servers_of_the_tests_that_are_missing_are_installed_by_root_or_named(
    missing: list[str], apt_get: str, installed: list[str], said: str, machine: Machine
) -> None:
    machine.has_program("id", "echo 0")
    machine.has_program("apt-get", apt_get)
    for server in missing:
        setattr(machine, server, "a-server-of-nobody")
    done = machine.set_up("test_servers.sh")
    assert done.returncode == 0, done.stderr
    assert said in done.stderr
    calls = [call.rpartition("recommends ")[2] for call in machine.calls() if "install" in call]
    assert calls == installed


def test_setup_without_a_suitable_python_or_of_an_unknown_level_says_so(machine: Machine) -> None:
    done = machine.set_up("setup.sh", "some")
    assert done.returncode == 2
    assert done.stderr == "setup: the level was 'some', expected first, light, demo, site or all\n"
    machine.has_program("python3.11", "exit 1")
    machine.has_program("python3", "exit 1")
    done = machine.set_up()
    assert done.returncode == 2
    assert done.stderr == "setup: Python 3.11 to 3.14 is needed\n"


@pytest.mark.parametrize("failing", ["echo pip >", "echo pip pyspark >", 'echo "$2" >'])
def test_setup_with_a_failed_part_shows_why_and_is_tried_again(
    machine: Machine, failing: str
) -> None:
    assert failing in PYTHON
    broken = PYTHON.replace(failing, f"echo no network; false {failing}")
    machine.has_program("python3.11", broken)
    done = machine.set_up()
    assert done.returncode == 3
    assert "no network" in done.stderr
    assert not list((machine.project / ".venv").glob(".setup*"))
    machine.has_program("python3.11", PYTHON)
    (machine.project / ".venv/bin/python").unlink()
    assert machine.set_up().returncode == 0
