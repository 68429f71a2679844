"""Draws the pictures of the documents: `python -m tools.pictures` writes them into docs/pictures.

Three of them are the imports of the code; those for type checkers count, too.
"""

from __future__ import annotations

import sys
from typing import Final

from tools.drawing import Arrow, draw
from tools.marks import PRODUCT, ROOT, House

FOLDER: Final = ROOT / "docs" / "pictures"
PICTURES: Final = {
    "packages": (),
    "sequencing": ("sequencer",),
    "receiving": ("matcher_receiver", "gapfill"),
}

WALK: Final = (
    Arrow("your service", "service", "submit"),
    Arrow("service", "submission"),
    Arrow("submission", "assembly, keys"),
    Arrow("assembly, keys", "core: ids, seal"),
    Arrow("core: ids, seal", "committer", "batch"),
    Arrow("committer", "PostgreSQL", "1. page"),
    Arrow("committer", "publisher", "2. batch"),
    Arrow("publisher", "Kafka", "frame"),
    Arrow("Kafka", "listening", "frame"),
    Arrow("listening", "core: decides"),
    Arrow("core: decides", "receiver", "linked"),
    Arrow("core: decides", "fill", "gap"),
    Arrow("fill", "PostgreSQL", "reads"),
    Arrow("receiver", "your matcher", "run"),
    Arrow("your matcher", "checkpoint"),
    Arrow("checkpoint", "PostgreSQL"),
)
"""The way of one order (`docs/a-walk-through.md`)."""


def packages(house: House) -> set[tuple[str, str]]:
    """Return which package imports which; all import the kernel, which needs no arrows."""
    return {
        (name.partition(".")[0], each.partition(".")[0])
        for name, imported in house.imports.items()
        for each in imported
        if each.partition(".")[0] not in (name.partition(".")[0], "chain_kernel")
    }


def modules(house: House, within: tuple[str, ...]) -> set[tuple[str, str]]:
    """Return which module of some packages imports which, without what is for tests of users.

    Folders of theirs are one each.
    """
    return {
        (_room(name), _room(each))
        for name, imported in house.imports.items()
        if name.partition(".")[0] in within and name not in within and not name.endswith(".testing")
        for each in imported
        if each.partition(".")[0] in within and each not in within and _room(name) != _room(each)
    }


def _room(name: str) -> str:
    return ".".join(name.split(".")[:2])


def without_detours(edges: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """Leave out an edge where a longer way leads to the same place: the picture stays readable."""
    after: dict[str, set[str]] = {}
    for start, end in edges:
        after.setdefault(start, set()).add(end)

    def reaches(start: str, end: str, seen: set[str]) -> bool:
        for each in after.get(start, ()):
            if each not in seen:
                seen.add(each)
                if each == end or reaches(each, end, seen):
                    return True
        return False

    return {
        (start, end)
        for start, end in edges
        if not any(each != end and reaches(each, end, {start}) for each in after[start])
    }


def drawn() -> dict[str, str]:
    """Return the pictures by name."""
    house = House(PRODUCT)
    imports = {
        name: without_detours(modules(house, within)) if within else packages(house)
        for name, within in PICTURES.items()
    }
    arrows = {name: [Arrow(*edge) for edge in edges] for name, edges in imports.items()}
    return {name: draw(each) for name, each in {**arrows, "walk": WALK}.items()}


def main() -> int:
    """Write the pictures."""
    for name, picture in drawn().items():
        (FOLDER / f"{name}.svg").write_text(picture, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
