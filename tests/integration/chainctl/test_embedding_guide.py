"""The guides for those who embed the engine, followed from an empty folder."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from chain_kernel import errors
from tests.pages import ROOT, blocks_of, lay_out, run_commands, shown_but_not_said

TUTORIAL = ROOT / "docs" / "tutorial.md"
OWN_FOLDER = "mkdir first-chain && cd first-chain\n"
"""The folder of the test is that one."""
MATCHING = ROOT / "docs" / "embed-a-matching-service.md"
SEQUENCING = ROOT / "docs" / "embed-a-sequencing-service.md"
DOORS = {"orderchain", "orderchain.spark", "outbox"}
PAGES = [
    ROOT / "README.md",
    *(ROOT / "docs").glob("*.md"),
    *(ROOT / "examples").glob("*.py"),
]
INNER = {"OrderchainError"}
"""The root of all: no test has to name it."""


@pytest.fixture
def folder(server_folder: Path) -> Iterator[Path]:
    """An empty folder, with the stack in it that the guide starts; stopped whatever happens."""
    made = server_folder / "project"
    made.mkdir()
    yield made
    run(made, "chainctl stack down")


def run(folder: Path, commands: str) -> subprocess.CompletedProcess[str]:
    # What step 1 of the guide installs is what this test runs with.
    settings = {"CHAINCTL_STACK_DIR": str(folder.parent / "stack"), "PYTHONPATH": str(ROOT)}
    return run_commands(folder, commands, programs=Path(sys.executable).parent, settings=settings)


@pytest.mark.postgres
@pytest.mark.kafka
@pytest.mark.timeout(300)
def test_tutorial_followed_from_an_empty_folder_shows_what_it_says(folder: Path) -> None:
    done = run(folder, "".join(lay_out(TUTORIAL, folder)).replace(OWN_FOLDER, ""))
    assert done.returncode == 0, done.stdout + done.stderr
    assert shown_but_not_said(TUTORIAL, done.stdout) == []


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
    assert "futures 1000 True\nmany 1000\ncolumns 1000\nconflict True\n" in done.stdout
    assert "each ['Ack', 'Ack', 'OrderError', 'KeyConflict']" in done.stdout
    assert "refused ['key', 'key']" in done.stdout
    # The standby went on where the killed leader ended.
    standby = (folder / "standby.log").read_text(encoding="utf-8").split()
    assert standby[:2] == ["leading", "fred#2"]
    leader = (folder / "leader.log").read_text(encoding="utf-8").split()
    assert standby[3] == leader[leader.index("fred#1") + 1]
    assert "chain 8 0\nchain 9 0\n" in done.stdout
    assert "1 passed" in done.stdout


@pytest.mark.parametrize("guide", [MATCHING, SEQUENCING], ids=lambda guide: guide.stem)
def test_service_of_a_guide_has_forty_lines(guide: Path) -> None:
    (service,) = [block.text for block in blocks_of(guide) if block.title == "service.py"]
    lines = [line for line in service.splitlines() if line.strip()]
    assert len(lines) <= 40


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_for_users_import_by_the_front_door_alone(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    if page.suffix == ".md":
        text = "\n".join(block.text for block in blocks_of(page) if block.language == "python")
    modules = set(re.findall(r"^ *(?:from|import) +([\w.]+)", text, flags=re.MULTILINE))
    parts = {"sequencer", "matcher_receiver", "gapfill", "chain_kernel", "chain_verifier"}
    ours = {module for module in modules if module.partition(".")[0] in {*parts, *DOORS}}
    # What tests are made of is no part of a service.
    assert {module for module in ours if ".testing" not in module} <= DOORS


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
