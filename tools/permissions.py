"""Writes the tables of rights into `docs/permissions.md`: `python -m tools.permissions`.

They are made of `chainctl/schema/shipped`: after a change of a part's SQL, `tools/schema_facts.py`
runs first. Objects on which every role has the same rights share a row.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from chainctl.schema.parts import PARTS, shipped_facts

if TYPE_CHECKING:
    from chainctl.schema.parts import SchemaPart

PAGE: Final = Path(__file__).parents[1] / "docs" / "permissions.md"
LETTERS: Final = {"SELECT": "S", "INSERT": "I", "UPDATE": "U", "DELETE": "D", "EXECUTE": "X"}
_OBJECT: Final = re.compile(r"(table|view|function) (\w+)")
_RIGHT: Final = re.compile(r"role (\w+) may ([A-Z]+)( column \w+)?")


def rights_of(part: SchemaPart) -> dict[str, dict[str, set[str]]]:
    """Return the letters of each role by object; small ones are for some of its columns only."""
    facts = shipped_facts(part)
    partitions = {fact.object for fact in facts if fact.value.startswith("table partition ")}
    rights: dict[str, dict[str, set[str]]] = {}
    for fact in facts:
        found = _OBJECT.match(fact.object)
        if found is None or fact.object in partitions:
            continue
        name = found[2] + ("()" if found[1] == "function" else "")
        held = rights.setdefault(name, {role: set() for role in part.roles})
        if (right := _RIGHT.fullmatch(fact.aspect)) is not None:
            role, privilege, column = right.groups()
            held[role].add(LETTERS[privilege].lower() if column else LETTERS[privilege])
    return rights


def table_of(part: SchemaPart) -> str:
    """Return the table of a part."""
    rows: dict[tuple[str, ...], list[str]] = {}
    for name, held in rights_of(part).items():
        cells = tuple("".join(sorted(letters, key="SsIiUuDX".index)) for letters in held.values())
        rows.setdefault(cells, []).append(f"`{name}`")
    lines = [("object", *part.roles), ("---",) * (len(part.roles) + 1)]
    lines += [(", ".join(names), *cells) for cells, names in rows.items()]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def with_tables(page: str) -> str:
    """Return the text of the page with each table as it is now."""
    for part in PARTS.values():
        begin, end = f"<!-- rights: {part.name} -->\n\n", "\n<!-- end -->"
        before, _, rest = page.partition(begin)
        page = before + begin + table_of(part) + end + rest.partition(end)[2]
    return page


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
