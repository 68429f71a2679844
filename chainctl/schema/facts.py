"""What a part of the schema was shipped as, and how a database differs from it.

A fact is what the catalogs know of one thing of one object: a column, a grant, the body of a
function. The shipped facts are in files beside this module, made from the part's SQL by
`tools/schema_facts.py`: so a check needs no right to make a database.
"""

from __future__ import annotations

import re
from importlib.resources import files
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from chainctl.schema.parts import expected_objects
from orderchain.sql import OWNER, load_sql

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from chainctl.database import Connection
    from chainctl.schema.parts import SchemaPart

_SQL: Final = load_sql("chainctl.schema", "facts.sql")

_TUNED: Final = "setting "
"""Storage settings are a DBA's to tune: one that was not shipped is no difference."""

_ALWAYS_THERE: Final = frozenset({"database", "schema public"})


class Fact(NamedTuple):
    """One thing of one object: `table chain_page`, `column payloads`, `bytea[] NOT NULL`."""

    object: str
    aspect: str
    value: str


def shipped_facts(part: SchemaPart) -> list[Fact]:
    """Return what `part` is where its SQL was applied and nothing was changed since."""
    text = (files("chainctl.schema") / "shipped" / f"{part.name}.json").read_bytes()
    return msgspec.json.decode(text, type=list[Fact])


def encode_facts(facts: Iterable[Fact]) -> str:
    """Return the text of a file of shipped facts: one line per fact, so that a change shows."""
    lines = ",\n".join(msgspec.json.encode(fact).decode() for fact in facts)
    return f"[\n{lines}\n]\n"


async def read_facts(connection: Connection, part: SchemaPart) -> list[Fact]:
    """Return what `part` is in the database of `connection`; any role may ask."""
    named = expected_objects(part.text(), part.roles)
    relations = [name for kind, name in named if kind in ("table", "view")]
    functions = [name for kind, name in named if kind == "function"]
    async with connection.transaction(readonly=True):
        await connection.execute(_SQL["reader_settings"])
        rows = await connection.fetch(
            _SQL["facts"], relations, functions, [OWNER, *part.roles], OWNER
        )
    return sorted(Fact(*row) for row in rows)


def differences(
    found: Iterable[Fact], shipped: Iterable[Fact], own_roles: Collection[str] = ()
) -> list[str]:
    """Return one line per difference of `found` from `shipped`, sorted by object.

    What was granted to `own_roles`, which a DBA made, is no difference. PostgreSQL 15 and 18 report
    the same facts of the same schema.
    """
    ours, theirs = _by_aspect(found), _by_aspect(shipped)
    known = {name for name, _ in theirs} | _ALWAYS_THERE
    present = {name for name, _ in ours} | _ALWAYS_THERE
    lines = [f"{name}: missing" for name in known - present]
    lines += [f"{name}: not shipped" for name in present - known]
    for name, aspect in {*ours, *theirs}:
        has, was = ours.get((name, aspect)), theirs.get((name, aspect))
        if name in known & present and has != was and not _is_own(aspect, was, own_roles):
            lines.append(f"{name}: {_difference(aspect, has, was)}")
    return sorted(lines)


def is_lacking(difference: str) -> bool:
    """Return whether, by this line of `differences`, something is not there that programs use."""
    return bool(_LACKING.search(difference))


_LACKING: Final = re.compile(r": missing$|: column \S+ is missing, |: role \S+ may not ")


def _by_aspect(facts: Iterable[Fact]) -> dict[tuple[str, str], str]:
    return {(name, aspect): value for name, aspect, value in facts}


def _difference(aspect: str, has: str | None, shipped: str | None) -> str:
    """Return the text of one difference; None: there is no such thing."""
    role, may, privilege = aspect.partition(" may ")
    if may:
        if has is None:
            return f"{role} may not {privilege}, shipped: {shipped}"
        return (
            f"{role} {has.replace('may', f'may {privilege}', 1)}, shipped: {shipped or 'may not'}"
        )
    if aspect == "body":
        return "body is not the shipped one"
    if has is None:
        return f"{aspect} is missing, shipped as {shipped}"
    return f"{aspect} is {has}, shipped {'without' if shipped is None else f'as {shipped}'}"


def _is_own(aspect: str, shipped: str | None, own_roles: Collection[str]) -> bool:
    """Return whether the aspect is the DBA's to choose, and no part of what was shipped."""
    if shipped is not None:
        return False
    return aspect.startswith(_TUNED) or any(
        aspect.startswith((f"role {role} may ", f'role "{role}" may ')) for role in own_roles
    )
