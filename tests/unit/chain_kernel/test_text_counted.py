from __future__ import annotations

import pytest

from chain_kernel.text import counted


@pytest.mark.parametrize(
    ("count", "noun", "plural", "shown"),
    [
        (0, "row", "", "0 rows"),
        (1, "row", "", "1 row"),
        (2_500, "row", "", "2,500 rows"),
        (1, "try", "tries", "1 try"),
        (3, "try", "tries", "3 tries"),
    ],
)
def test_one_thing_is_counted_in_the_singular(
    count: int, noun: str, plural: str, shown: str
) -> None:
    assert counted(count, noun, plural) == shown
