"""The guides for those who embed the engine, followed from an empty folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from orderchain import errors

from .conftest import clean_environment

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[3]
MATCHING = ROOT / "docs" / "embed-a-matching-service.md"
SEQUENCING = ROOT / "docs" / "embed-a-sequencing-service.md"
PAGES = [
    ROOT / "README.md",
    *(ROOT / "docs").glob("*.md"),
    *(ROOT / "examples").glob("*.py"),
]
INNER = {"OrderchainError"}
"""The root of all: nobody has to tell it from others."""
DEADLINE_SECONDS = 100


def blocks(guide: Path) -> list[tuple[str, str, str]]:
    """Return language, name and text of each code block."""
    text = guide.read_text(encoding="utf-8")
    return re.findall(r"^```(\w+)(?: (\S+))?\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


@pytest.fixture
def folder(server_folder: Path) -> Iterator[Path]:
    """An empty folder, with the stack in it that the guide starts; stopped whatever happens."""
    made = server_folder / "project"
    made.mkdir()
    yield made
    run(made, "chainctl stack down")


def run(folder: Path, commands: str) -> subprocess.CompletedProcess[str]:
    environment = clean_environment({"CHAINCTL_STACK_DIR": str(folder.parent / "stack")})
    # What step 1 of the guide installs is what this test runs with.
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    return subprocess.run(
        ["bash", "-e", "-c", commands],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        check=False,
    )


def lay_out(guide: Path, folder: Path) -> list[str]:
    """Write the files of a guide, and return its commands."""
    commands = []
    for language, name, text in blocks(guide):
        if language == "sh" and name != "install":
            commands.append(text)
        elif name and language != "sh":
            (folder / name).write_text(text, encoding="utf-8")
    return commands


@pytest.mark.postgres
@pytest.mark.kafka
@pytest.mark.timeout(300)
def test_matching_guide_followed_from_an_empty_folder_leads_to_a_service_that_works(
    folder: Path,
) -> None:
    commands = lay_out(MATCHING, folder)
    commands.insert(-1, 'echo "positions $(python -c "$LOOK")"\n')
    program = (
        "import asyncio, asyncpg, os\n"
        "async def main():\n"
        "    c = await asyncpg.connect(os.environ['CHAINCTL_DATABASE'])\n"
        "    print(dict(map(tuple, await c.fetch('SELECT * FROM position'))))\n"
        "    await c.close()\n"
        "asyncio.run(main())\n"
    )
    done = run(folder, f"export LOOK={_quoted(program)}\n" + "".join(commands))
    assert done.returncode == 0, done.stdout + done.stderr
    # Twice started, once applied.
    assert "positions {'ALPHA': 70, 'BRAVO': 40}" in done.stdout
    assert len(set(re.findall(r"in step at \d+", done.stdout))) == 1
    assert "2 passed" in done.stdout
    assert "positions " in done.stdout.split("passed")[1]


@pytest.mark.postgres
@pytest.mark.kafka
@pytest.mark.timeout(300)
def test_sequencing_guide_followed_from_an_empty_folder_leads_to_a_service_that_works(
    folder: Path,
) -> None:
    done = run(folder, "".join(lay_out(SEQUENCING, folder)))
    assert done.returncode == 0, done.stdout + done.stderr
    first = (folder / "first.log").read_text(encoding="utf-8").splitlines()
    assert [line.split()[0] for line in first] == ["leading", "anna#1", "anna#2", "bert#1"]
    ids = [int(line.split()[1]) for line in first[1:]]
    assert [int(line.split()[2]) for line in first[1:]] == [0, *ids[:-1]]
    # Each way to submit many, with a conflict in a call that is all or none and in one that is not.
    assert "futures 1000 True\nmany 1000\nconflict True\n" in done.stdout
    assert "each ['Ack', 'Ack', 'OrderError', 'KeyConflict']" in done.stdout
    assert "refused ['key', 'key']" in done.stdout
    # The standby went on where the killed leader stood.
    standby = (folder / "standby.log").read_text(encoding="utf-8").split()
    assert standby[:2] == ["leading", "fred#2"]
    leader = (folder / "leader.log").read_text(encoding="utf-8").split()
    assert standby[3] == leader[leader.index("fred#1") + 1]
    assert "2 passed" in done.stdout


@pytest.mark.parametrize("guide", [MATCHING, SEQUENCING], ids=lambda guide: guide.stem)
def test_service_of_a_guide_has_forty_lines(guide: Path) -> None:
    (service,) = [text for _, name, text in blocks(guide) if name == "service.py"]
    lines = [line for line in service.splitlines() if line.strip()]
    assert len(lines) <= 40


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_for_users_import_by_the_front_door_alone(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    if page.suffix == ".md":
        found = re.findall(r"^```python[^\n]*\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
        text = "\n".join(found)
    modules = set(re.findall(r"^ *(?:from|import) +([\w.]+)", text, flags=re.MULTILINE))
    parts = {"sequencer", "matcher_receiver", "gapfill", "outbox", "chain_verifier"}
    assert not {module for module in modules if module.partition(".")[0] in parts}
    ours = {module for module in modules if module.partition(".")[0] == "orderchain"}
    # What tests are made of is no part of a service.
    others = {module for module in ours if not module.startswith("orderchain.testing.")}
    assert others <= {"orderchain"}


def test_sequencing_guide_names_every_error_that_a_sequencer_raises() -> None:
    """And none that it does not know of."""
    text = SEQUENCING.read_text(encoding="utf-8")
    table = text.partition("| it raises |")[2]
    named = {
        name
        for row in re.findall(r"^\| (`\w+`(?:, `\w+`)*) \|", table, flags=re.MULTILINE)
        for name in re.findall(r"\w+", row)
    }
    raised = {
        name
        for path in (ROOT / "sequencer").glob("*.py")
        for name in re.findall(r"(?:raise|return) (\w+)\(", path.read_text(encoding="utf-8"))
        if hasattr(errors, name)
    }
    assert raised - named <= INNER
    assert all(hasattr(errors, name) for name in named)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
