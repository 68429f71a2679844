"""Draws the house from its imports: `python -m tools.pictures` prints three Mermaid graphs.

`--write` puts them into `docs/architecture.md`. Imports for type checkers count, too.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Final

from tools.marks import PRODUCT, ROOT, House

if TYPE_CHECKING:
    from collections.abc import Iterable

PAGE: Final = ROOT / "docs" / "architecture.md"
BEGIN: Final = "<!-- {}, by tools/pictures.py -->"
END: Final = "<!-- end of {} -->"
LAZY: Final = {"orderchain", "orderchain.front_door", "orderchain.testing.pytest_plugin"}
"""What hands on names when it is asked for them, and depends on nothing before."""

PICTURES: Final = {
    "packages": (),
    "sequencing": ("sequencer",),
    "receiving": ("matcher_receiver", "gapfill"),
}


def packages(house: House) -> set[tuple[str, str]]:
    """Return which package imports which; all import the kernel, which needs no arrows."""
    return {
        (name.partition(".")[0], each.partition(".")[0])
        for name, imported in house.imports.items()
        if name not in LAZY
        for each in imported
        if each.partition(".")[0] not in (name.partition(".")[0], "orderchain")
    }


def modules(house: House, within: tuple[str, ...]) -> set[tuple[str, str]]:
    """Return which module of some packages imports which; folders of theirs are one each."""
    return {
        (_room(name), _room(each))
        for name, imported in house.imports.items()
        if name.partition(".")[0] in within and name not in within
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


def mermaid(edges: Iterable[tuple[str, str]]) -> str:
    """Return a graph as Mermaid."""
    lines = [f"    {start} --> {end}" for start, end in sorted(edges)]
    return "\n".join(["```mermaid", "flowchart TD", *lines, "```"])


def drawn() -> dict[str, str]:
    """Return the pictures by name."""
    house = House(PRODUCT)
    return {
        name: mermaid(without_detours(modules(house, within)) if within else packages(house))
        for name, within in PICTURES.items()
    }


def in_page(page: str) -> dict[str, str]:
    """Return the pictures that a page has."""
    found: dict[str, str] = {}
    for name in PICTURES:
        _, _, rest = page.partition(BEGIN.format(name))
        part, _, _ = rest.partition(END.format(name))
        found[name] = part.strip()
    return found


def main() -> int:
    """Print the pictures, or write them."""
    asked = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    asked.add_argument("--write", action="store_true", help=f"write them into {PAGE.name}")
    is_written = asked.parse_args().write
    page = PAGE.read_text()
    for name, picture in drawn().items():
        begin, end = BEGIN.format(name), END.format(name)
        before, _, rest = page.partition(begin)
        _, _, after = rest.partition(end)
        page = f"{before}{begin}\n{picture}\n{end}{after}"
        if not is_written:
            sys.stdout.write(f"{name}\n{picture}\n\n")
    if is_written:
        PAGE.write_text(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
