"""Where an error's text goes into a message or a log, there is a text, and it stays on one line.

Behaviour is tested where it happens; this is the second line, for what will be written later.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Final

from tests.sources import PRODUCT, modules

if TYPE_CHECKING:
    from collections.abc import Iterator

MUTE: Final = {"BaseException", "Exception", "OSError", "TimeoutError", "ConnectionError",
               "KafkaError", "InterfaceError", "PostgresError", "CancelledError"}  # fmt: skip
"""Kinds of errors that often come without a text, or with one of several lines."""


def is_mute(handler: ast.ExceptHandler) -> bool:
    """Say whether what is caught may come without a text."""
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(ast.unparse(kind).rpartition(".")[2] in MUTE for kind in kinds if kind is not None)


def is_bare(node: ast.expr, name: str | None) -> bool:
    """Say whether `node` is the error itself, or `str` of it."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "str":
        return bool(node.args) and is_bare(node.args[0], name)
    return isinstance(node, ast.Name) and node.id == name


def is_log_call(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func).startswith("_log.")


def faults(tree: ast.Module) -> Iterator[str]:
    """Yield what is wrong in a module: the line, and why."""
    for handler in ast.walk(tree):
        if not isinstance(handler, ast.ExceptHandler) or handler.name is None:
            continue
        name, mute = handler.name, is_mute(handler)
        for node in ast.walk(handler):
            if isinstance(node, ast.BoolOp) and is_bare(node.values[0], name):
                yield f"{node.lineno}: an error is always true, its text may be of several lines"
            elif mute and isinstance(node, ast.FormattedValue) and node.conversion == -1:
                if is_bare(node.value, name):
                    yield f"{node.lineno}: the text of {name} may be empty"
            elif mute and isinstance(node, ast.Call) and is_log_call(node):
                # `%r` shows the class, and escapes.
                is_shown = "%r" in ast.unparse(node.args[0])
                if not is_shown and any(is_bare(each, name) for each in node.args):
                    yield f"{node.lineno}: the text of {name} may be empty"


def test_text_of_an_error_is_asked_of_reason_of() -> None:
    assert [
        f"{module.name}:{fault}" for module in modules(*PRODUCT) for fault in faults(module.tree)
    ] == []


def test_rule_finds_what_it_is_for() -> None:
    for line in (
        'raise RetryError(f"kafka: {error or type(error).__name__}")',
        "return str(error) or type(error).__name__",
        'raise RetryError(f"kafka: {error}")',
        '_log.warning("kafka: %s", error)',
        '_log.warning("kafka: %s", str(error))',
    ):
        program = f"try:\n    send()\nexcept (KafkaError, OSError) as error:\n    {line}\n"
        assert list(faults(ast.parse(program))), line
