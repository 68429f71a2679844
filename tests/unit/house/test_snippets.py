"""Every code block of the documents: it has a language, and what can be checked of it holds.

`tests/integration/chainctl/test_pages.py` runs the commands, `test_embedding_guide.py` the guides.
"""

import ast
import json
import re
import tomllib
from pathlib import Path

from chainctl.settings import load_settings
from tests.cases import case
from tests.command_lines import command_lines, refusal_of
from tests.pages import PAGES, ROOT, Block, blocks_of
from tests.programs import output_of

LANGUAGES = {"sh", "python", "toml", "sql", "json", "csv", "text"}
"""`text` is what a command shows, or a drawing."""

PLACEHOLDERS = re.compile(r"\.\.\.|\b[A-Z]{1,}\b(?!=)|[\[|]")
"""What shows that inline code names a form of a command, not a call."""

BLOCKS = [block for page in PAGES for block in blocks_of(page)]


def of_language(language: str) -> list[Block]:
    found = [block for block in BLOCKS if block.language == language]
    assert found, language
    return found


def test_each_block_has_a_language_and_each_fence_a_block() -> None:
    assert {block.language for block in BLOCKS} <= LANGUAGES
    texts = [page.read_text(encoding="utf-8") for page in PAGES]
    assert sum(len(re.findall(r"^ *```", text, re.MULTILINE)) for text in texts) == 2 * len(BLOCKS)


def test_calls_of_chainctl_are_taken() -> None:
    calls = [(block, words) for block in of_language("sh") for words in command_lines(block.text)]
    assert calls
    for block, words in calls:
        if "--demo" not in words:  # test_demo.py runs those, after a demo
            assert refusal_of(words) is None, f"{block}: chainctl {' '.join(words)}"


def test_calls_of_chainctl_within_the_text_are_taken() -> None:
    texts = [page.read_text(encoding="utf-8") for page in PAGES]
    prose = [re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S) for text in texts]
    found = [call for text in prose for call in re.findall(r"`(chainctl [^`]*)`", text)]
    calls = [call.replace("\n", " ") for call in found if not PLACEHOLDERS.search(call)]
    assert calls
    for call in calls:
        for words in command_lines(call):
            # A name alone is enough, without all that a call needs.
            refusal = refusal_of(words) or "Missing"
            assert re.search("^Missing|^a group of commands|requires an arg", refusal), call


def test_targets_of_make_exist() -> None:
    """`make -n` says what it would do, and does nothing."""
    lines = {line.partition("#")[0].strip() for block in of_language("sh")
             for line in block.text.splitlines() if line.startswith("make ")}  # fmt: skip
    lines |= {name for page in PAGES for name in re.findall(r"`(make \w+)`", page.read_text())}
    assert lines
    for line in sorted(lines):
        shown = output_of("bash", "-c", line.replace("make ", "make -n ", 1), cwd=ROOT)
        for words in command_lines(shown):
            assert refusal_of(words) is None, f"{line}: chainctl {' '.join(words)}"


def test_python_is_python() -> None:
    """A part of a program may be in a coroutine, or before a function."""
    for block in of_language("python"):
        with case(block):
            flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | ast.PyCF_ONLY_AST
            text = block.text + ("def f(): ...\n" if block.text.lstrip().startswith("@") else "")
            compile(text, str(block), "exec", flags=flags, dont_inherit=True)


def test_toml_is_taken(tmp_path: Path) -> None:
    read = [(block, tomllib.loads(block.text)) for block in of_language("toml")]
    # The file of the message service's clients is read by test_clients.
    settings = [(block, found) for block, found in read if "client" not in found]
    assert settings
    for block, found in settings:
        with case(block):
            path = tmp_path / "chainctl.toml"
            path.write_text(block.text, encoding="utf-8")
            taken = load_settings(["--config", str(path)]).sources
            assert {name for name in taken if taken[name] == str(path)} == found.keys()


def test_json_is_json() -> None:
    for block in of_language("json"):
        with case(block):
            for text in block.text.splitlines() if block.title.endswith("l") else [block.text]:
                json.loads(text)


def test_no_page_installs_from_an_index() -> None:
    """There is no such package there yet, and one of that name might be another's."""
    for page in PAGES:
        with case(page):
            text = page.read_text(encoding="utf-8")
            assert not re.search(r"(pip|uv|pipx) (install|add)[^`\n]*['\" ]orderchain\b(?!-)", text)
