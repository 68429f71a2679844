"""The loader of named SQL blocks."""

import pytest

from chain_kernel.sql import parse_sql, with_constant

TEXT = """\
-- What this file is for; not a block.

-- head: the head of a chain
SELECT last_id FROM chain_head
 WHERE chain_id = $1;

-- rows: rows after an id
-- (a comment inside the block)
SELECT id FROM chain_event WHERE id > $1
"""


def test_blocks_are_found_by_name_without_the_semicolon() -> None:
    statements = parse_sql(TEXT)
    assert list(statements) == ["head", "rows"]
    assert statements["head"] == "SELECT last_id FROM chain_head\n WHERE chain_id = $1"
    assert statements["rows"].endswith("WHERE id > $1")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "SELECT 1;",
        "-- a comment\nSELECT 1;",
        "-- one: purpose\n",
        "-- one: purpose\n;\n",
        "-- one: purpose\n-- two: purpose\nSELECT 2;",
        "-- one: purpose\nSELECT 1;\n-- one: again\nSELECT 2;",
    ],
)
def test_text_without_block_or_with_empty_or_repeated_block_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="block"):
        parse_sql(text)


def test_a_constant_takes_the_place_of_the_first_value() -> None:
    statement = "SELECT $2, $10 FROM t WHERE chain_id = $1 AND id > $11 AND $1 > 0"
    expected = "SELECT $1, $9 FROM t WHERE chain_id = 7 AND id > $10 AND 7 > 0"
    assert with_constant(statement, 7) == expected


def test_a_constant_is_an_integer_and_nothing_else() -> None:
    with pytest.raises(TypeError, match="expected an integer"):
        with_constant("SELECT $1", "1; DROP TABLE chain_page")
