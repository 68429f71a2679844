"""docs/embed-a-matching-service.md, followed from an empty folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from .conftest import clean_environment

if TYPE_CHECKING:
    from collections.abc import Iterator

GUIDE = Path(__file__).parents[2] / "docs" / "embed-a-matching-service.md"
DEADLINE_SECONDS = 100


def blocks() -> list[tuple[str, str, str]]:
    """Return language, name and text of each code block."""
    text = GUIDE.read_text(encoding="utf-8")
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


@pytest.mark.postgres
@pytest.mark.kafka
@pytest.mark.timeout(300)
def test_guide_followed_from_an_empty_folder_leads_to_a_service_that_works(folder: Path) -> None:
    commands = []
    for language, name, text in blocks():
        if language == "sh" and name != "install":
            commands.append(text)
        elif name and language != "sh":
            (folder / name).write_text(text, encoding="utf-8")
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


def test_service_of_the_guide_has_forty_lines() -> None:
    (service,) = [text for _, name, text in blocks() if name == "service.py"]
    lines = [line for line in service.splitlines() if line.strip()]
    assert len(lines) <= 40


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
