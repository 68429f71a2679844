"""How often tests wait for real time: by clocks and events they are fast, and hold under load."""

import ast

from tests.sources import modules

REAL_WAITS_MAX = 193
"""It only falls. A wait in virtual time is one of these, too; `sleep(0)` is none."""


def is_wait(node: ast.AST) -> bool:
    """Return whether it is `asyncio.sleep` or `time.sleep`, of more than nothing."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    is_zero = bool(node.args) and isinstance(node.args[0], ast.Constant) and node.args[0].value == 0
    return ast.unparse(node.func) in ("asyncio.sleep", "time.sleep") and not is_zero


def test_tests_wait_for_real_time_no_more_often_than_before() -> None:
    waits = sum(is_wait(node) for each in modules("tests") for node in ast.walk(each.tree))
    assert waits <= REAL_WAITS_MAX
