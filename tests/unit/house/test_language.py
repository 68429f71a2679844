"""The words that the house does not use: in documents, docstrings, comments, help, logs, errors.

`CONTRIBUTING.md` has the rules; this holds the worst of them down.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from tokenize import COMMENT, NAME, STRING

from tests.sources import PRODUCT, ROOT, modules

UNITS = r"(?:rows|orders|messages|batches|frames|commits|bytes|ns|ms|us|seconds|microseconds)"
WORDS = {
    r"whoever": "those who, or name them",
    r"anew": "again",
    r"in vain": "say what did not happen",
    r"for good": "forever, never again",
    r"by turns": "alternately",
    r"at work": "works, runs",
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
IN_NAMES = re.compile(r"(?:\b|_)(?:told|tells?|mend(?:s|ed|ing)?|whoever)(?:_|\b)", re.I)
"""Words of names; `tell` alone is a method of files."""
PROSE = {STRING, COMMENT, getattr(tokenize, "FSTRING_MIDDLE", STRING)}
"""From Python 3.12 on, an f-string is several tokens."""
ANY = "|".join(rf"(?P<w{n}>{word})" for n, word in enumerate(WORDS))
FOUND = re.compile(rf"\b(?:{ANY})\b", re.I)  # one \b before all: twice as fast as one for each
HERE = "tests/unit/house/test_language.py"


def hits_in(line: str) -> Iterator[str]:
    for hit in FOUND.finditer(line):
        assert hit.lastgroup is not None
        yield f"{hit[0]!r}: better {list(WORDS.values())[int(hit.lastgroup[1:])]}"


def hits_in_code(text: str) -> Iterator[str]:
    """Yield what is wrong in docstrings, comments and texts, and in names."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in PROSE:
            for number, line in enumerate(token.string.splitlines(), token.start[0]):
                yield from (f"{number}: {hit}" for hit in hits_in(line))
        elif token.type == NAME and token.string != "tell" and IN_NAMES.search(token.string):
            yield f"{token.start[0]}: {token.string}: a name"


def test_numbers_are_read_in_the_digits_0_to_9() -> None:
    """To a pattern `\\d` is each digit of Unicode, and so it is to `int`: of other scripts, too."""
    sources = modules(*PRODUCT, "benchmarks", "tools")
    assert [
        f"{module.name}: {line.strip()}"
        for module in sources
        for line in module.text.splitlines()
        if re.search(r"\bis(decimal|digit|numeric)\(", line) and "isascii()" not in line
    ] == []
    assert [
        f"{module.name}:{token.start[0]}: {token.string}"
        for module in sources
        for token in tokenize.generate_tokens(io.StringIO(module.text).readline)
        if token.type in PROSE and r"\d" in token.string.replace(r"\W\d_", "")
    ] == []


def test_words_that_are_not_used_in_code() -> None:
    assert [
        f"{module.name}:{hit}"
        for module in modules(*PRODUCT, "benchmarks", "examples", "tools", "tests")
        if module.name != HERE and (FOUND.search(module.text) or IN_NAMES.search(module.text))
        for hit in hits_in_code(module.text)
    ] == []


def test_words_that_are_not_used_in_pages_and_statements() -> None:
    patterns = "*.md", "docs/**/*.md", "benchmarks/**/*.md", "*.sql", "[a-z]*/**/*.sql"
    assert [
        f"{path.relative_to(ROOT)}:{number}: {hit}"
        for pattern in patterns
        for path in sorted(ROOT.glob(pattern))
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        for hit in hits_in(line.partition("--")[2] if path.suffix == ".sql" else line)
    ] == []


def test_titles_say_what_the_thing_is() -> None:
    question = re.compile(r"(?:What|How|Whether|Where)\b")
    assert [
        f"{module.name}:{node.lineno}: {node.value.value.splitlines()[0]}"
        for module in modules(*PRODUCT, "benchmarks", "tools")
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
        and question.match(node.value.value)
    ] == []


def test_who_does_something_is_named() -> None:
    found = re.compile(r"\bnobody\b", re.IGNORECASE)
    assert [module.name for module in modules(*PRODUCT) if found.search(module.text)] == []
