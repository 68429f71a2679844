"""The words that the house does not use: in documents, docstrings, comments, help, logs, errors.

`CONTRIBUTING.md` has the rules; this holds the worst of them down.
"""

from __future__ import annotations

import io
import re
import tokenize
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[3]
PRODUCT = (
    "orderchain", "sequencer", "matcher_receiver", "gapfill", "outbox", "chain_verifier",
    "chainctl", "demo", "local_stack", "examples",
)  # fmt: skip

UNITS = r"(?:rows|orders|messages|batches|frames|commits|bytes|ns|ms|us|seconds|microseconds)"
WORDS = {
    r"whoever": "those who, or name them",
    r"anew": "again",
    r"by and by": "later",
    r"for ever": "forever",
    r"mend(?:s|ed|ing)?": "fix",
    r"(?:tells?|told) of": "report, name, show",
    r"lets? go": "release, drop",
    r"hand(?:s|ed)? over to whom": "name them",
    r"dear(?:er)?": "expensive",
    UNITS + r" an? (?:row|order|second|batch|frame|message|minute)": "per",
}
FOUND = re.compile("|".join(rf"(?P<w{n}>\b{word}\b)" for n, word in enumerate(WORDS)), re.I)


def pages() -> list[Path]:
    """Return the documents; decisions are records of their time."""
    return [
        *sorted(ROOT.glob("*.md")),
        *sorted((ROOT / "docs").glob("*.md")),
        *sorted((ROOT / "docs" / "runbooks").glob("*.md")),
    ]


def modules() -> list[Path]:
    return [path for name in PRODUCT for path in sorted((ROOT / name).rglob("*.py"))]


def prose_of(path: Path) -> Iterator[tuple[int, str]]:
    """Yield what people read in a file, line by line, with its number."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        yield from enumerate(text.splitlines(), 1)
        return
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in (tokenize.STRING, tokenize.COMMENT):
            yield from enumerate(token.string.splitlines(), token.start[0])


@pytest.mark.parametrize("kind", ["pages", "modules"])
def test_words_that_are_not_used(kind: str) -> None:
    better = list(WORDS.values())
    found = [
        f"{path.relative_to(ROOT)}:{line}: {hit[0]!r}: better {better[int(hit.lastgroup[1:])]}"
        for path in (pages() if kind == "pages" else modules())
        for line, text in prose_of(path)
        if (hit := FOUND.search(text)) is not None and hit.lastgroup is not None
    ]
    assert not found, "\n".join(found)
