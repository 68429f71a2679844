"""The files of the project, each read and parsed once, for the tests of the house."""

import ast
from functools import cache, cached_property
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
PRODUCT: Final = (
    "orderchain", "chain_kernel", "sequencer", "matcher_receiver", "gapfill", "outbox",
    "chain_verifier", "chainctl", "orderchain_demo", "local_stack",
)  # fmt: skip
"""The packages of the wheel."""


class Module:
    """A file of Python, by its path from the root of the project."""

    def __init__(self, path: Path) -> None:
        self.name = path.relative_to(ROOT).as_posix()
        self.text = path.read_text(encoding="utf-8")

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @property
    def import_name(self) -> str:
        return self.name.removesuffix(".py").replace("/", ".")


def modules(*folders: str) -> list[Module]:
    """Return the modules within folders of the project."""
    return [_module(path) for name in folders for path in sorted((ROOT / name).rglob("*.py"))]


@cache
def _module(path: Path) -> Module:
    return Module(path)
