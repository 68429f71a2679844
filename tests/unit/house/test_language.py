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
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).parents[3]
PRODUCT = (
    "orderchain", "chain_kernel", "sequencer", "matcher_receiver", "gapfill", "outbox",
    "chain_verifier",
    "chainctl", "orderchain_demo", "local_stack", "examples",
)  # fmt: skip

UNITS = r"(?:rows|orders|messages|batches|frames|commits|bytes|ns|ms|us|seconds|microseconds)"
WORDS = {
    r"whoever": "those who, or name them",
    r"anew": "again",
    r"in vain": "say what did not happen",
    r"what became of": "the outcome of",
    r"by and by": "later",
    r"for ever": "forever",
    r"mend(?:s|ed|ing)?": "fix",
    r"(?:tells?|told)": "report, return, log, show",
    r"stands? (?!for\b|in for\b)\w+": "is stored, is, is written",
    r"stood": "was",
    r"(?:one|each|commits?) behind the other": "one after the other",
    r"behind (?:the|an?|this|that|its) (?:commit|batch|row|id|take-over|lock|fence)": "after",
    r"(?-i:Of (?!course))\w+": "a sentence does not begin with it: name the subject first",
    r"lets? go": "release, drop",
    r"hand(?:s|ed)? over to whom": "name them",
    r"dear(?:er)?": "expensive",
    UNITS + r" an? (?:row|order|second|batch|frame|message|minute)": "per",
}
IN_NAMES = re.compile(r"(?:^|_)(?:told|tells?|mend(?:s|ed|ing)?|whoever)(?:_|$)", re.I)
"""Words of names; `tell` alone is a method of files."""
PROSE = {tokenize.STRING, tokenize.COMMENT, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}
"""From Python 3.12 on, an f-string is several tokens."""
FOUND = re.compile("|".join(rf"(?P<w{n}>\b{word}\b)" for n, word in enumerate(WORDS)), re.I)


def pages() -> list[Path]:
    return [
        *sorted(ROOT.glob("*.md")),
        *sorted((ROOT / "docs").rglob("*.md")),
    ]


def modules() -> list[Path]:
    return [
        path
        for name in (*PRODUCT, "benchmarks", "tools")
        for path in sorted((ROOT / name).rglob("*.py"))
    ]


def statements() -> list[Path]:
    files = [path for name in PRODUCT for path in sorted((ROOT / name).rglob("*.sql"))]
    return [ROOT / "schema.sql", *files]


def prose_of(path: Path) -> Iterator[tuple[int, str]]:
    """Yield what people read in a file, line by line, with its number."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        yield from enumerate(text.splitlines(), 1)
        return
    if path.suffix == ".sql":
        lines = enumerate(text.splitlines(), 1)
        yield from ((number, line.partition("--")[2]) for number, line in lines if "--" in line)
        return
    for token in tokens_of(path):
        if token.type in PROSE:
            yield from enumerate(token.string.splitlines(), token.start[0])


def tokens_of(path: Path) -> Iterator[tokenize.TokenInfo]:
    return tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline)


@pytest.mark.parametrize("files", [pages, modules, statements])
def test_words_that_are_not_used(files: Callable[[], list[Path]]) -> None:
    better = list(WORDS.values())
    found = [
        f"{path.relative_to(ROOT)}:{line}: {hit[0]!r}: better {better[int(hit.lastgroup[1:])]}"
        for path in files()
        for line, text in prose_of(path)
        if (hit := FOUND.search(text)) is not None and hit.lastgroup is not None
    ]
    assert not found, "\n".join(found)


def test_names_are_made_of_other_words() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{token.start[0]}: {token.string}"
        for path in modules()
        for token in tokens_of(path)
        if token.type == tokenize.NAME and token.string != "tell" and IN_NAMES.search(token.string)
    ]
    assert not found, "\n".join(found)
