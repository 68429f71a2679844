"""The marks of the house, counted from the code: `python -m tools.marks` prints them.

The number in brackets is what is wanted. Marks are held against, not gamed: a figure that moves the
wrong way asks for a reason. `--list` names what each count is made of.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections import Counter, defaultdict
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final

import click

import orderchain
from chainctl.main import cli
from chainctl.settings import SETTING
from matcher_receiver import ReceiverConfig
from sequencer import SequencerConfig
from tests.command_lines import commands_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from chain_kernel.config import Config

ROOT: Final = Path(__file__).parents[1]
PRODUCT: Final = (
    "chain_kernel", "orderchain", "sequencer", "matcher_receiver", "gapfill", "outbox",
    "chain_verifier",
    "chainctl", "orderchain_demo", "local_stack",
)  # fmt: skip
ALL: Final = (*PRODUCT, "benchmarks")
TESTS: Final = ("tests/unit", "tests/integration")
FOLDER_FILES_MAX: Final = 15
SMALL_LINES: Final = 60
NO_PACKAGE: Final = {"deploy", "examples", "house", "packaging", "schema"}
"""Folders of tests that are about no package."""
HOP_STATEMENTS: Final = 4
SHARED_OPTIONS: Final = {
    "--chain", "--json", "--demo", "--http", "--reason", "--actor", "--dry-run",
}  # fmt: skip
DOORS: Final = {
    "orderchain", "orderchain.errors", "orderchain.spark", "orderchain.testing", "outbox",
    "outbox.testing",
}  # fmt: skip
LIKE_STATEMENTS: Final = 6
"""Functions of so many statements whose trees are equal count as a duplicated pair."""


class House:
    """The modules of the product and the benchmarks, and who imports whom."""

    def __init__(self, packages: tuple[str, ...]) -> None:
        self.paths = {
            ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
            for package in packages
            for path in sorted((ROOT / package).rglob("*.py"))
        }
        self.trees = {name: ast.parse(path.read_text()) for name, path in self.paths.items()}
        self.lines = {name: path.read_text().count("\n") for name, path in self.paths.items()}
        self.imports = {name: self._imports(name) for name in self.paths}
        self.importers: dict[str, set[str]] = defaultdict(set)
        for name, imported in self.imports.items():
            for each in imported:
                self.importers[each].add(name)

    def _imports(self, name: str) -> set[str]:
        found: set[str] = set()
        for node in ast.walk(self.trees[name]):
            if isinstance(node, ast.ImportFrom) and node.module:
                below = {f"{node.module}.{alias.name}" for alias in node.names}
                found |= (below & self.paths.keys()) or {node.module}
            elif isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
        return (found & self.paths.keys()) - {name}

    def statements(self) -> int:
        """Return how many there are: lines could be made denser, these not."""
        return sum(
            isinstance(each, ast.stmt) for tree in self.trees.values() for each in ast.walk(tree)
        )

    def hops(self) -> list[str]:
        """Return the private functions of few statements that one place alone calls."""
        functions = (ast.FunctionDef, ast.AsyncFunctionDef)
        found: list[str] = []
        for name, tree in self.trees.items():
            nodes = list(ast.walk(tree))
            used = Counter(
                each.id if isinstance(each, ast.Name) else each.attr
                for each in nodes
                if isinstance(each, (ast.Name, ast.Attribute))
            )
            for node in nodes:
                if isinstance(node, functions) and re.match("_(?!_)", node.name):
                    count = sum(isinstance(each, ast.stmt) for each in ast.walk(node)) - 1
                    if used[node.name] == 1 and count <= HOP_STATEMENTS:
                        found.append(f"{name}.{node.name}")
        return found

    def single_use(self) -> list[str]:
        """Return the small modules that one other module alone imports."""
        return [
            f"{name} ({lines} lines, by {next(iter(self.importers[name]))})"
            for name, lines in self.lines.items()
            if lines < SMALL_LINES
            and len(self.importers[name]) == 1
            and self.paths[name].name != "__init__.py"
        ]

    def classes_twice(self) -> list[str]:
        """Return the names of classes that are defined in more than one module."""
        return self._twice(lambda node: isinstance(node, ast.ClassDef))

    def functions_twice(self) -> list[str]:
        """Return the public names of functions that are defined in more than one module.

        Commands are left out, which the command line names, and so is the verifier without Spark,
        which answers to the same names as the one with it.
        """
        functions = (ast.FunctionDef, ast.AsyncFunctionDef)
        return self._twice(
            lambda node: (
                isinstance(node, functions)
                and not node.name.startswith("_")
                and node.name != "main"
                and not any(
                    "click" in ast.unparse(each) or "command" in ast.unparse(each)
                    for each in node.decorator_list
                )
            ),
            besides="chain_verifier.local.",
        )

    def _twice(self, counts: Callable[[Any], bool], besides: str = " ") -> list[str]:
        where: dict[str, list[str]] = defaultdict(list)
        for name, tree in self.trees.items():
            nodes: list[Any] = [] if name.startswith(besides) else list(tree.body)
            for node in nodes:
                if counts(node):
                    where[node.name].append(name)
        return [f"{each}: {', '.join(names)}" for each, names in where.items() if len(names) > 1]

    def duplicates(self) -> list[str]:
        """Return the pairs of longer functions whose trees are equal."""
        where: dict[str, list[str]] = defaultdict(list)
        for name, tree in self.trees.items():
            for node in ast.walk(tree):
                if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                    count = sum(isinstance(each, ast.stmt) for each in ast.walk(node)) - 1
                    if count >= LIKE_STATEMENTS:
                        text = "".join(ast.dump(each) for each in node.body)
                        where[text].append(f"{name}.{node.name}")
        return [" = ".join(names) for names in where.values() if len(names) > 1]


def circles(imports: Mapping[str, Iterable[str]]) -> list[str]:
    """Return the groups of names that import each other, type-checking imports included."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[str] = []

    def visit(name: str) -> None:
        order[name] = low[name] = len(order)
        stack.append(name)
        for each in sorted(imports[name]):
            if each not in order:
                visit(each)
                low[name] = min(low[name], low[each])
            elif each in stack:
                low[name] = min(low[name], order[each])
        if low[name] == order[name]:
            group = stack[stack.index(name) :]
            del stack[stack.index(name) :]
            if len(group) > 1:
                found.append(" - ".join(sorted(group)))

    for name in sorted(imports):
        if name not in order:
            visit(name)
    return found


def packages(house: House) -> dict[str, set[str]]:
    """Return which package imports which. The outbox's commands are a package above the others."""
    found: dict[str, set[str]] = defaultdict(set)
    for name, imported in house.imports.items():
        found[_package(name)] |= set(map(_package, imported)) - {_package(name)}
    return found


def _package(name: str) -> str:
    return "outbox.cli" if name.startswith("outbox.cli") else name.partition(".")[0]


def upward(imports: Mapping[str, Iterable[str]]) -> list[str]:
    """Return the imports of a package by one that is below it or beside it."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    layers = ["outbox.cli", *contracts["contracts"][0]["layers"]]
    height = {name: -n for n, layer in enumerate(layers) for name in layer.split(" | ")}
    return [
        f"{name} -> {each}"
        for name, imported in sorted(imports.items())
        for each in sorted(imported)
        if height[each] >= height[name]
    ]


def count_in_files(pattern: str, count: Callable[[str], int]) -> int:
    """Return what `count` counts in all stored files whose names match."""
    listed = subprocess.run(
        ["git", "ls-files", pattern], cwd=ROOT, check=True, capture_output=True, text=True
    )
    return sum(count((ROOT / name).read_text()) for name in listed.stdout.splitlines())


def _first(config: type[Config]) -> int:
    """Return how many settings a user meets before the tuning."""
    return len({*config.__struct_fields__} - {"tuning"})


def most_options() -> tuple[int, str]:
    """Return how many options of its own a command has at most, and which."""
    counts = {
        path: sum(
            isinstance(each, click.Option)
            and not (each.name or "").startswith(SETTING)
            and not SHARED_OPTIONS & {*each.opts}
            for each in command.params
        )
        for path, command in commands_of(cli)
    }
    path = max(counts, key=counts.__getitem__)
    return counts[path], path


def deep_imports() -> list[str]:
    """Return what pages and examples import from elsewhere than from the doors."""
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "examples").glob("*.py")]
    imports = re.compile(r"^ *(?:from|import) ([\w.]+)", re.MULTILINE)
    return [
        f"{page.name}: {name}"
        for page in pages
        for name in imports.findall(page.read_text(encoding="utf-8"))
        if name.partition(".")[0] in PRODUCT and name not in DOORS
    ]


def unmirrored(house: House) -> list[str]:
    """Return the test files that are neither named after a module, nor beside what they import.

    `tests/unit/a/b/test_c_more.py` mirrors `a/b/c.py`. With any name, a file mirrors the package in
    whose folder it is, if it imports the front door of `a`, or several modules and one from there.
    """
    found = []
    for name in house.paths:
        if not name.startswith("tests."):
            continue
        _, _, *folder, stem = name.split(".")
        if not stem.startswith("test_") or folder[0] in NO_PACKAGE:
            continue
        words = stem.split("_")[1:]
        names = {"_".join(words[: count + 1]) for count in range(len(words))}
        if any(".".join([*folder, each]) in house.paths for each in names):
            continue
        imported = house.imports[name]
        own = {each for each in imported if each.startswith(f"{folder[0]}.")}
        is_beside = any(each.startswith(f"{'.'.join(folder)}.") for each in own)
        if own and folder[0] not in imported and not (is_beside and len(own) > 1):
            found.append(f"{name}: {', '.join(sorted(own))}")
    return found


def main(arguments: list[str]) -> int:
    """Print the marks."""
    house, product = House(ALL), House(PRODUCT)
    folders = Counter(path.parent for path in house.paths.values())
    full = [
        f"{folder.relative_to(ROOT)}: {count}"
        for folder, count in folders.most_common()
        if count > FOLDER_FILES_MAX
    ]
    rooms = packages(product)
    lines = sum(house.lines.values())
    tests = count_in_files("tests/*.py", lambda text: text.count("\n"))
    options, command = most_options()
    hops, deep = product.hops(), deep_imports()
    marks: list[tuple[str, object, list[str]]] = [
        ("statements, product and benchmarks (44,000)", house.statements(), []),
        ("lines of tests / of product and benchmarks (1.05)", f"{tests / lines:.3f}", []),
        (
            "words, all Markdown (50,000)",
            count_in_files("*.md", lambda text: len(text.split())),
            [],
        ),
        (f"private functions, one caller, {HOP_STATEMENTS} statements (150)", len(hops), hops),
        ("own options of one command (16)", options, [command]),
        ("imports of pages from other places than doors (0)", len(deep), deep),
        ("Python files, product and benchmarks", len(house.paths), []),
        ("lines, product and benchmarks", lines, []),
        ("lines, tests", tests, []),
        ("names at the door", len(orderchain.__all__), []),
        ("settings of a sequencer", _first(SequencerConfig), []),
        ("settings of a receiver", _first(ReceiverConfig), []),
        ("lines per file, median", median(house.lines.values()), []),
        (f"folders of more than {FOLDER_FILES_MAX} files", len(full), full),
    ]
    for title, found in (
        (f"modules below {SMALL_LINES} lines that one other imports", product.single_use()),
        ("circles of files, type-checking imports included", circles(product.imports)),
        ("circles of packages", circles(rooms)),
        ("arrows upward", upward(rooms)),
        ("class names that are used twice", product.classes_twice()),
        ("function names that are used twice", product.functions_twice()),
        ("duplicated functions", house.duplicates()),
        ("test files that mirror no module", unmirrored(House((*ALL, *TESTS)))),
    ):
        marks.append((title, len(found), found))
    for title, value, found in marks:
        sys.stdout.write(f"{title:55} {value:>8}\n")
        if "--list" in arguments:
            sys.stdout.writelines(f"    {each}\n" for each in found)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
