"""Each wrong changes one thing, and what shows it names its place."""

import ast
import asyncio
import re
import tomllib
from collections.abc import Callable
from typing import Any

import asyncpg
import pytest

from chain_kernel.sql import parse_sql
from local_stack.postgres import SUPERUSER

from .mutants import ROOT, mutants_of, mutated, mutated_text
from .run import REASONS, TARGETS

FEWEST = {"chain_kernel/model.py": 19}
"""Wrongs of a module that has mostly declarations; every other one has more than 20."""


@pytest.mark.parametrize("path", [path for path in TARGETS if path.endswith(".py")])
def test_each_wrong_changes_the_module(path: str) -> None:
    whole = ast.dump(ast.parse((ROOT / path).read_text(encoding="utf-8")))
    wrongs = [ast.dump(mutated(mutant)) for mutant in mutants_of(path)]
    assert len(wrongs) >= FEWEST.get(path, 21)
    assert whole not in wrongs


def wrong_statements() -> list[str]:
    found = []
    for path in (path for path in TARGETS if path.endswith(".sql")):
        text = (ROOT / path).read_text(encoding="utf-8")
        if "CREATE TABLE" in text:
            continue
        assert not re.search(r"USING \([^)]*(epoch|nonce)", text), "it hides a condition"
        whole = parse_sql(text)
        for mutant in mutants_of(path):
            wrong = parse_sql(mutated_text(mutant))
            (changed,) = [name for name in whole if whole[name] != wrong[name]]
            assert mutant.shown.startswith(f"{changed} without ")
            found.append(wrong[changed])
    return found


def test_statement_without_a_condition_is_one_that_the_server_takes(
    database_with: Callable[..., str], postgres_server: Any
) -> None:
    name = database_with("chain", "outbox", "inbox", "decision", "callback")

    async def prepare() -> None:
        connection = await asyncpg.connect(postgres_server.dsn(SUPERUSER, name))
        for wrong in wrong_statements():
            await connection.prepare(wrong)
        await connection.close()

    asyncio.run(prepare())


def test_each_reason_names_a_wrong() -> None:
    names = {mutant.name for path in TARGETS for mutant in mutants_of(path)}
    assert set(tomllib.loads(REASONS.read_text(encoding="utf-8"))) <= names
