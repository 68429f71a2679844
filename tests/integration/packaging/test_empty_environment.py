"""The wheel in an environment that holds nothing else: installed as a page says, then followed."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.chainctl.monitor_pages import address_of, serving_for, until_shown
from tests.pages import ROOT, blocks_of, lay_out, run_commands, shown_but_not_said
from tests.programs import completed, output_of

TUTORIAL = ROOT / "docs" / "tutorial.md"
PASSED_ON = ("HTTPS_PROXY", "https_proxy", "SSL_CERT_FILE", "UV_DEFAULT_INDEX", "UV_INDEX_URL")
"""What uv may need to reach its index."""


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the programs that the tutorial's first step installs."""
    home = tmp_path_factory.mktemp("home")
    (install,) = [each.text for each in blocks_of(TUTORIAL) if each.title == "install"]
    assert "dist/orderchain-*.whl" in install
    # The checkout of the tests is not written into.
    commands = re.sub(r"\bdist\b", str(home / "dist"), install).replace("~/", f"{home}/")
    done = run_commands(
        ROOT,
        commands,
        programs=Path(sys.executable).parent,
        settings={},
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return home / "orderchain" / "bin"


@pytest.fixture
def folder(server_folder: Path, programs: Path) -> Iterator[Path]:
    made = server_folder / "project"
    made.mkdir()
    yield made
    follow(made, programs, "chainctl stack down")


def follow(folder: Path, programs: Path, commands: str) -> subprocess.CompletedProcess[str]:
    settings = {"CHAINCTL_STACK_DIR": str(folder.parent / "stack"), "PYTHONPATH": ""}
    return run_commands(folder, commands, programs=programs, settings=settings)


@pytest.mark.postgres
@pytest.mark.kafka
@pytest.mark.timeout(900)
def test_tutorial_followed_with_the_wheel_alone_shows_what_it_says(
    folder: Path, programs: Path
) -> None:
    commands = "".join(lay_out(TUTORIAL, folder))
    done = follow(folder, programs, commands.replace("mkdir first-chain && cd first-chain\n", ""))
    assert done.returncode == 0, done.stdout + done.stderr
    assert shown_but_not_said(TUTORIAL, done.stdout) == []


@pytest.mark.postgres
@pytest.mark.timeout(900)
def test_quickstart_runs_from_the_wheel_alone_and_finds_what_it_planted(
    server_folder: Path, programs: Path, tmp_path: Path
) -> None:
    """In an environment of uv's, where no program of ours but this one is, and no Java."""
    (wheel,) = programs.parents[1].glob("dist/*.whl")
    environment = {name: os.environ[name] for name in PASSED_ON if name in os.environ} | {
        "HOME": str(tmp_path),
        "PATH": os.defpath,
        "CHAINCTL_STACK_DIR": str(server_folder / "stack"),
    }
    uvx = (Path(sys.executable).with_name("uvx"), "--python", sys.executable)
    asked = (*uvx, "--constraints", ROOT / "constraints.txt", "--from", f"{wheel}[cli,stack]")
    try:
        done = completed(*asked, "chainctl", "quickstart", cwd=tmp_path, env=environment)
        assert done.returncode == 0, done.stdout + done.stderr
        (lost,) = re.findall(r"^ *order (\d+) is missing$", done.stdout, re.MULTILINE)
        assert f"$ grep -v '\"id\":{lost},'" in done.stdout
    finally:
        down = completed(*asked, "chainctl", "stack", "down", cwd="/", env=environment)
    assert down.returncode == 0, down.stderr


@pytest.mark.timeout(900)
def test_command_without_its_extra_names_a_command_that_pip_takes(programs: Path) -> None:
    """The package need not be on an index for that: what is installed satisfies pip."""
    verify = ("verify", "--chain", 1, "--source", "database")
    nowhere = ("--database", "postgresql://x@127.0.0.1:1/y")
    asked = completed(programs / "chainctl", *verify, *nowhere, cwd="/")
    assert asked.returncode == 2
    (said,) = re.findall(r"extra spark: (.*)\n", asked.stderr)
    dry_run = ("--dry-run", "--no-deps", "--no-index")
    output_of(*shlex.split(said), *dry_run, cwd="/", env={"PATH": ""})


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory, programs: Path) -> Path:
    """The folder of the programs of the image, made as the Containerfile says elsewhere."""
    text = (ROOT / "deploy" / "Containerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    (commands,) = re.findall(r"^RUN (python -m venv .*)$", text, flags=re.MULTILINE)
    source = tmp_path_factory.mktemp("source")
    for path in (ROOT / "deploy" / "requirements.txt", *programs.parents[1].glob("dist/*.whl")):
        (source / path.name).write_bytes(path.read_bytes())
    place = source / "image"
    done = run_commands(
        source,
        commands.replace("/opt/orderchain", str(place)),
        programs=Path(sys.executable).parent,
        settings={},
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return place / "bin"


@pytest.mark.timeout(900)
def test_image_is_made_by_commands_that_work(tmp_path: Path, image: Path) -> None:
    for words in (["--help"], ["messages", "token"], ["seal", "key", str(tmp_path / "key")]):
        started = run_commands(tmp_path, f"chainctl {' '.join(words)}", programs=image, settings={})
        assert started.returncode == 0, started.stderr


@pytest.mark.postgres
@pytest.mark.kafka
@pytest.mark.orderchain(chains=[7])
@pytest.mark.timeout(900)
def test_health_is_served_by_what_is_installed(
    tmp_path: Path, image: Path, orderchain_environment: dict[str, str]
) -> None:
    with subprocess.Popen(
        [image / "chainctl", "receive", "--chain", "7", "--name", "r1", "--output", "j.jsonl",
         "--follow", "--http", "0", "--log-format", "json"],
        cwd=tmp_path, env=orderchain_environment, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        try:
            address = address_of(process)
            until_shown(f"{address}/livez", 200, "ok")
            until_shown(f"{address}/readyz", 200, "ok")
            until_shown(f"{address}/metrics", 200, "orderchain_receiver_head_delivered")
            environment = Path(f"/proc/{serving_for(process.pid)}/environ").read_text()
            assert str(image.parent) in environment
            assert str(ROOT) not in environment
        finally:
            process.terminate()
            _, stderr = process.communicate()
    assert process.returncode == 143, stderr
