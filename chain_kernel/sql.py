"""Statements in files, by name, the schema that they expect, and the roles that it defines.

Loads named SQL blocks from `.sql` files.

A block begins with a line `-- name: purpose` and runs to the next such line. Values are passed as
`$n` only; nothing but a chain's number is ever written into a statement.
"""

from __future__ import annotations

import re
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from chain_kernel.errors import SchemaError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any


_BLOCK: Final = re.compile(r"^-- (?P<name>[a-z][a-z0-9_]*): (?P<purpose>.+)$", re.MULTILINE)
_VALUE: Final = re.compile(r"\$([1-9][0-9]*)")


def load_sql(package: str, file_name: str) -> Mapping[str, str]:
    """Return the statements of `file_name` inside `package`, by name.

    Raises ValueError when a name is repeated, a block is empty, or the file has none.
    """
    return parse_sql((files(package) / file_name).read_text(encoding="utf-8"))


def parse_sql(text: str) -> Mapping[str, str]:
    """Return the blocks of `text` by their names."""
    statements: dict[str, str] = {}
    blocks = list(_BLOCK.finditer(text))
    if not blocks:
        raise ValueError("no named SQL block found")
    ends = [block.start() for block in blocks[1:]] + [len(text)]
    for block, end in zip(blocks, ends, strict=True):
        name, statement = block["name"], text[block.end() : end].strip().rstrip(";")
        if name in statements or not statement:
            raise ValueError(f"SQL block {name!r} is there twice or is empty")
        statements[name] = statement
    return MappingProxyType(statements)


@lru_cache(maxsize=1_024)
def with_constant(statement: str, number: object) -> str:
    """Return `statement` with `number` in the place of its first value; the others move up.

    Raises TypeError unless it is an integer.
    """
    if not isinstance(number, int):
        raise TypeError(f"a constant was {number!r}, expected an integer")

    def moved(found: re.Match[str]) -> str:
        return f"{number:d}" if found[1] == "1" else f"${int(found[1]) - 1}"

    return _VALUE.sub(moved, statement)


SCHEMA_VERSION: Final = 2


def require_version(
    row: Mapping[str, Any] | None, expected: int = SCHEMA_VERSION, part: str = "chain"
) -> None:
    """Raise SchemaError unless `row`, which a database reports, is of the expected version.

    Its `version` is, or its `upgrade_to`: while an upgrade to that version is under way, the tables
    serve both. None: the database reports no version. `part` is the part of the schema.
    """
    version = None if row is None else row["version"]
    if row is not None and expected in (version, row["upgrade_to"]):
        return
    option = "" if part == "chain" else f" --part {part}"
    if version is None:
        hint = f"; chainctl schema apply{option}"
    elif version > expected:
        hint = "; use a newer orderchain"
    else:
        hint = f"; chainctl schema upgrade{option}"
    name = "schema version" if part == "chain" else f"schema version of {part}"
    raise SchemaError(name, version, f"{expected}{hint}")


NUMBERED: Final[Mapping[str, str]] = MappingProxyType(
    {"chain_verified": "mark_id", "chain_act": "act_id"}
)
"""The chain's tables whose rows get a number from a sequence, and its column."""


def renumbering(table: str, column: str) -> str:
    """Return the statement by which the owner lifts a sequence to the rows of its table."""
    rows = f"(SELECT max({column}) FROM public.{table})"  # noqa: S608 - for people to run
    return f"SELECT setval(pg_get_serial_sequence('public.{table}', '{column}'), {rows})"


def schema_sql() -> str:
    """Return the text of `schema.sql`, from the wheel or from a checkout."""
    packaged = files("chain_kernel") / "schema.sql"
    if packaged.is_file():
        return packaged.read_text(encoding="utf-8")
    return (Path(__file__).parent.parent / "schema.sql").read_text(encoding="utf-8")


_TABLE: Final = re.compile(r"^CREATE TABLE (\w+) \($", re.MULTILINE)


def tables_of(schema: str) -> tuple[str, ...]:
    """Return the tables that the text of a schema makes, without partitions."""
    return tuple(_TABLE.findall(schema))


@lru_cache
def chain_tables() -> tuple[str, ...]:
    """Return the chain's tables."""
    return tables_of(schema_sql())


OWNER: Final = "orderchain_owner"
"""Owns every object of the schema. NOLOGIN: no session works as the owner."""

SEQUENCER_WRITER: Final = "sequencer_writer"
GAP_READER: Final = "gap_reader"
RECEIVER_WRITER: Final = "receiver_writer"
AUDITOR: Final = "auditor"

LOGIN_ROLES: Final = (SEQUENCER_WRITER, GAP_READER, RECEIVER_WRITER, AUDITOR)
"""Services log in as these. `schema.sql` makes those that do not exist, without a password."""
