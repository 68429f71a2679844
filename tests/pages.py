"""The code blocks of the documents, for the tests that check and run them."""

import os
import re
import subprocess
from pathlib import Path
from textwrap import dedent
from typing import Final, NamedTuple

from tests.programs import completed

ROOT: Final = Path(__file__).parents[1]
PAGES: Final = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs" / "runbooks").glob("*.md")),
]
"""What readers follow; decisions are records of their time."""

_FENCE: Final = re.compile(
    r'^(?P<indent> *)```(?P<language>\w*)(?: title="(?P<title>[^"]+)")?(?P<rest>[^\n]*)\n'
    r"(?P<text>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)


class Block(NamedTuple):
    """One code block."""

    page: Path
    line: int
    """The line of its first fence, from 1."""
    language: str
    title: str
    """A file's name, or what else is in `title="..."`."""
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks_of(page: Path) -> list[Block]:
    """Return the code blocks of a page, in their order."""
    text = page.read_text(encoding="utf-8")
    return [
        Block(
            page,
            text.count("\n", 0, match.start()) + 1,
            match["language"] + match["rest"],
            match["title"] or "",
            dedent(match["text"]),
        )
        for match in _FENCE.finditer(text)
    ]


def lay_out(page: Path, folder: Path) -> list[str]:
    """Write the files that a guide shows into `folder`, and return its commands but `install`."""
    commands = []
    for block in blocks_of(page):
        if block.language == "sh" and block.title != "install":
            commands.append(block.text)
        elif block.title and block.language != "sh":
            (folder / block.title).write_text(block.text, encoding="utf-8")
    return commands


def run_commands(
    folder: Path, commands: str, *, programs: Path, settings: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run a page's commands in `folder`, by the Python and `chainctl` in the folder `programs`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CHAINCTL_")}
    environment = kept | settings | {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
    shell = ("bash", "-e", "-c", commands)
    return completed(*shell, cwd=folder, env=environment, stdin=subprocess.DEVNULL)


def shown_but_not_said(page: Path, said: str) -> list[str]:
    """Return the lines of a page's `text` blocks that its commands did not write.

    Three dots stand for anything; how far a line is indented does not matter.
    """
    lines = [line for block in blocks_of(page) if block.language == "text" for line in
             block.text.splitlines()]  # fmt: skip
    patterns = [re.escape(line.rstrip()).replace(r"\.\.\.", ".*") for line in lines]
    return [
        line
        for line, pattern in zip(lines, patterns, strict=True)
        if not re.search(rf"^ *{pattern}\s*$", said, re.MULTILINE)
    ]
