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
from orderchain.roles import OWNER
from orderchain.sql import load_sql

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from chainctl.database import Connection
    from chainctl.schema.parts import SchemaPart

_SQL: Final = load_sql("chainctl.schema", "facts.sql")

_TUNED: Final = "setting "
"""Storage settings are a DBA's to tune: one that was not shipped is no difference."""

_ALWAYS_THERE: Final = frozenset({"database", "schema public"})

_CAST: Final = re.compile(r"::(?:double precision|timestamp with(?:out)? time zone|\w+)(?:\[\])*")
_DETAIL: Final = re.compile(r"\b\w+\.|[\s()\"]")
"""What one release of PostgreSQL prints of an expression, and another does not."""


class Fact(NamedTuple):
    """One thing of one object: `table chain_page`, `column payloads`, `bytea[] NOT NULL`."""

    object: str
    aspect: str
    value: str


class Facts(msgspec.Struct, frozen=True):
    """All facts of a part, and the release of PostgreSQL (such as 18) that reported them."""

    server: int
    facts: tuple[Fact, ...]


def shipped_facts(part: SchemaPart) -> Facts:
    """Return what `part` is where its SQL was applied and nothing was changed since."""
    text = (files("chainctl.schema") / "shipped" / f"{part.name}.json").read_bytes()
    return msgspec.json.decode(text, type=Facts)


def encode_facts(facts: Facts) -> str:
    """Return the text of a file of shipped facts: one line per fact, so that a change shows."""
    lines = ",\n".join(msgspec.json.encode(fact).decode() for fact in facts.facts)
    return f'{{"server":{facts.server},"facts":[\n{lines}\n]}}\n'


async def read_facts(connection: Connection, part: SchemaPart) -> Facts:
    """Return what `part` is in the database of `connection`; any role may ask."""
    named = expected_objects(part.text(), part.roles)
    relations = [name for kind, name in named if kind in ("table", "view")]
    functions = [name for kind, name in named if kind == "function"]
    async with connection.transaction(readonly=True):
        await connection.execute(_SQL["reader_settings"])
        rows = await connection.fetch(
            _SQL["facts"], relations, functions, [OWNER, *part.roles], OWNER
        )
    server = connection.get_server_version().major
    return Facts(server, tuple(sorted(Fact(*row) for row in rows)))


def differences(found: Facts, shipped: Facts, own_roles: Collection[str] = ()) -> list[str]:
    """Return one line per difference of `found` from `shipped`, sorted by object.

    What was granted to `own_roles`, which a DBA made, is no difference. Where another release of
    PostgreSQL reported the shipped facts, expressions are compared by their words alone, since each
    release prints parentheses, casts and prefixes in its own way.
    """
    is_same_release = found.server == shipped.server
    ours, theirs = _by_aspect(found.facts), _by_aspect(shipped.facts)
    known = {name for name, _ in theirs} | _ALWAYS_THERE
    present = {name for name, _ in ours} | _ALWAYS_THERE
    lines = [f"{name}: missing" for name in known - present]
    lines += [f"{name}: not shipped" for name in present - known]
    for name, aspect in {*ours, *theirs}:
        if name not in known & present:
            continue
        has, shipped_as = ours.get((name, aspect)), theirs.get((name, aspect))
        if is_same_release or has is None or shipped_as is None:
            is_equal = has == shipped_as
        else:
            is_equal = _words(has) == _words(shipped_as)
        if not is_equal and not _is_own(aspect, shipped_as, own_roles):
            lines.append(f"{name}: {_difference(aspect, has, shipped_as)}")
    return sorted(lines)


def _by_aspect(facts: Iterable[Fact]) -> dict[tuple[str, str], str]:
    """Return the value of each aspect of each object; several values are joined."""
    found: dict[tuple[str, str], str] = {}
    for name, aspect, value in facts:
        before = found.get((name, aspect))
        found[name, aspect] = value if before is None else f"{before}, {value}"
    return found


def _words(value: str) -> str:
    """Return `value` without what releases of PostgreSQL print differently."""
    return _DETAIL.sub("", _CAST.sub("", value)).lower()


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
