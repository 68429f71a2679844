"""The built wheel, in an environment that holds what one extra asks for and nothing else."""

import re
import subprocess
import sys
import zipfile
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest

from chain_kernel.text import not_installed
from tests.programs import completed, output_of
from tools.release import requirements_of

ROOT = Path(__file__).parents[3]

PROMISES = {
    "": ["chain_kernel.frame", "chain_kernel.seal", "chain_kernel.testing.memory_store"],
    "sequencer": ["sequencer"],
    "receiver": ["matcher_receiver", "gapfill"],
    "outbox": ["outbox", "outbox.service.interface", "outbox.testing"],
    "web": ["outbox.service.server", "outbox.callback.calls"],
    "cli": ["chainctl.main", "chainctl.commands.chain.sequence", "chainctl.commands.chain.receive"],
    "spark": ["chain_verifier.spark.verify"],
    "local": [
        "chain_verifier.local.verify",
        "chain_verifier.local.topic",
        "chain_verifier.sources.parquet",
    ],
    "stack": ["local_stack"],
    "tracing": ["chain_kernel.tracing", "opentelemetry.trace"],
}  # fmt: skip
"""What can be imported with each extra."""

OTHERS = {
    "sequencer": ["orderchain:open_sequencer", "sequencer"],
    "receiver": ["orderchain:open_receiver", "matcher_receiver", "gapfill"],
    "outbox": ["outbox:Consumer", "outbox:Relay", "outbox.testing"],
    "spark": ["orderchain:verify", "orderchain.spark"],
}
"""What an extra alone can import: a package, or a name of one."""

CONSOLE_FILES = ("page.html", "console.css", "console.js", "icon.svg")

FOREIGN = {
    "": ["asyncpg", "aiokafka", "pyspark", "numpy", "click"],
    "sequencer": ["aiokafka", "pyspark", "click", "rich"],
    "receiver": ["aiokafka", "pyspark", "click", "rich", "numpy"],
    "outbox": ["pyspark", "click", "rich", "numpy", "starlette"],
    "web": ["pyspark", "rich", "numpy"],
    "cli": ["pyspark"],
    "spark": ["click"],
    "local": ["pyspark", "click"],
    "stack": ["asyncpg", "aiokafka", "pyspark", "rich", "numpy"],
    "tracing": ["asyncpg", "aiokafka", "click"],
}
"""What an extra must not bring along."""


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel, as a release would."""
    folder = tmp_path_factory.mktemp("wheel")
    build = (sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder)
    output_of(*build, cwd=ROOT)
    (built,) = folder.glob("*.whl")
    return built


def make_environment(folder: Path, wheel: Path, extra: str) -> Path:
    """Unpack the wheel into `folder`, and link what `extra` requires beside it."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    (metadata,) = folder.glob("orderchain-*.dist-info")
    _, *names = requirements_of(Distribution.at(metadata), [extra])
    for name in names:
        required = distribution(name)
        for top in {file.parts[0] for file in required.files or [] if file.parts[0] != ".."}:
            place = folder / top
            source = Path(str(required.locate_file(top)))
            if not place.exists() and source.exists():
                place.symlink_to(source)
    return folder


def run_in(folder: Path, program: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run `program` by an interpreter that sees the standard library and `folder` alone."""
    path = f"import sys; sys.path.append({str(folder)!r})"
    return completed(sys.executable, "-I", "-S", "-c", f"{path}\n{program}", *words)


@pytest.mark.parametrize("extra", PROMISES)
def test_wheel_with_one_extra_imports_what_it_promises_and_brings_nothing_else(
    wheel: Path, tmp_path: Path, extra: str
) -> None:
    folder = make_environment(tmp_path, wheel, extra)
    for module in PROMISES[extra]:
        done = run_in(folder, f"import {module}")
        assert done.returncode == 0, f"{module}: {done.stderr}"
    for module in FOREIGN[extra]:
        done = run_in(folder, f"import {module}")
        assert "ModuleNotFoundError" in done.stderr, module


def test_wheel_holds_the_schema_and_the_marks_of_typed_packages(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    assert "chain_kernel/schema.sql" in names
    for package in (
        "chain_kernel",
        "orderchain",
        "sequencer",
        "matcher_receiver",
        "gapfill",
        "outbox",
        "chain_verifier",
    ):
        assert f"{package}/py.typed" in names
    for sql in (
        "sequencer/queries.sql",
        "gapfill/queries.sql",
        "matcher_receiver/queries.sql",
        "outbox/sql/outbox.sql",
        "chain_verifier/database.sql",
        "chain_verifier/local/scratch.sql",
        "chain_verifier/marks.sql",
        "chain_verifier/archive/archive.sql",
        "chain_verifier/report.css",
        "chain_verifier/report.html.jinja",
        *(f"chainctl/console/static/{name}" for name in CONSOLE_FILES),
    ):
        assert sql in names


def test_wheel_with_the_two_extras_of_the_console_has_all_of_it(
    wheel: Path, tmp_path: Path
) -> None:
    for extra in ("cli", "web"):
        make_environment(tmp_path, wheel, extra)
    for module in ("app", "feed", "state_reader"):
        done = run_in(tmp_path, f"import chainctl.console.{module}")
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("extra", ["", "sequencer", "outbox"])
def test_chainctl_without_its_extra_says_so_in_one_line(
    wheel: Path, tmp_path: Path, extra: str
) -> None:
    folder = make_environment(tmp_path, wheel, extra)
    (metadata,) = folder.glob("orderchain-*.dist-info")
    (script,) = Distribution.at(metadata).entry_points.select(group="console_scripts")
    module, function = script.value.split(":")
    done = run_in(folder, f"from {module} import {function}\nsys.exit({function}())")
    assert done.returncode == 2
    assert done.stderr == f"chainctl: {not_installed('click', 'cli')}\n"
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("extra", "names"),
    [
        ("", ("KafkaConfig", "DatabaseConfig", "Event", "Run", "errors")),
        ("sequencer", ("open_sequencer", "SequencerConfig", "Order")),
        ("receiver", ("open_receiver", "ReceiverConfig", "State")),
        ("spark", ("verify", "VerifyRequest")),
    ],
)
def test_door_of_the_wheel_needs_the_extra_of_what_is_asked_for_and_no_other(
    wheel: Path, tmp_path: Path, extra: str, names: tuple[str, ...]
) -> None:
    folder = make_environment(tmp_path, wheel, extra)
    done = run_in(folder, f"from orderchain import {', '.join(names)}")
    assert done.returncode == 0, done.stderr
    packages = {"sequencer": ["sequencer"], "receiver": ["matcher_receiver"]}
    for door in ("orderchain", "outbox", *packages.get(extra, ())):
        done = run_in(folder, f"from {door} import *\nprint(*dir())")
        assert done.returncode == 0, done.stderr
        assert door != "orderchain" or set(names) <= {*done.stdout.split()}
    # Spark's workers have both drivers, and with them all that the others need.
    needing = {"": set(OTHERS), "spark": set[str]()}
    for other in sorted(needing.get(extra, {"spark"})):
        for asked in OTHERS[other]:
            door, _, name = asked.partition(":")
            done = run_in(folder, f"from {door} import {name}" if name else f"import {door}")
            last = done.stderr.strip().splitlines()[-1]
            assert last.startswith(f"ModuleNotFoundError: {asked.replace(':', '.')}: "), last
            assert last.endswith(not_installed("", other))
            assert done.stderr.count("Traceback") == 1


@pytest.mark.parametrize(
    ("program", "door", "extra"),
    [
        ("import outbox.callback.calls", "outbox.callback.calls", "web"),
        ("from orderchain import Monitor\nMonitor()", "Monitor", "monitoring"),
    ],
)
def test_pages_over_http_name_their_extra(
    wheel: Path, tmp_path: Path, program: str, door: str, extra: str
) -> None:
    done = run_in(make_environment(tmp_path, wheel, "outbox"), program)
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith(f"ModuleNotFoundError: {door}: ")
    assert last.endswith(not_installed("", extra))


@pytest.mark.parametrize(
    ("extra", "config", "given"),
    [("sequencer", "SequencerConfig", ""), ("receiver", "ReceiverConfig", "name='matching', ")],
)
def test_config_with_kafka_names_its_extra_and_without_needs_none(
    wheel: Path, tmp_path: Path, extra: str, config: str, given: str
) -> None:
    folder = make_environment(tmp_path, wheel, extra)
    program = (
        f"from orderchain import {config}, open_{extra}\n"
        f"config = {config}(chain_id=1, {given}database='postgresql://u@h/d', kafka=%r)\n"
        f"open_{extra}(config)"
    )
    without = run_in(folder, program % None)
    assert (without.returncode, without.stderr) == (0, "")
    last = run_in(folder, program % "broker:9092").stderr.strip().splitlines()[-1]
    assert last.startswith(f"ModuleNotFoundError: {config}.kafka: ")
    assert last.endswith(not_installed("", "kafka"))


def test_help_of_the_wheel_lists_what_is_in_it(wheel: Path, tmp_path: Path) -> None:
    folder = make_environment(tmp_path, wheel, "cli")
    program = "from chainctl.main import main\nsys.exit(main(sys.argv[1:]))"
    shown = run_in(folder, program, "--help")
    assert re.findall(r"^  (demo|bench|outbox|messages) ", shown.stdout, re.M) == [
        "demo", "outbox", "messages",
    ]  # fmt: skip
    named = run_in(folder, program, "bench")
    assert named.stderr == "chainctl: bench is in the checkout of orderchain, not in the package.\n"
    assert named.returncode == 2
