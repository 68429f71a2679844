import re
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sequencer.stores.session import call, literal


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "NULL"),
        (-(2**63), "-9223372036854775808"),
        (b"\x00'", "'\\x0027'::bytea"),
        ("a'", "convert_from('\\x6127'::bytea, 'UTF8')"),
        (datetime(2026, 1, 2, 3, 4, 5, 6, UTC), "'2026-01-02T03:04:05.000006+00:00'::timestamptz"),
    ],
)
def test_literal_is_sql(value: object, text: str) -> None:
    assert literal(value) == text


@given(st.one_of(st.text(st.characters(exclude_categories=["Cs"])), st.binary()))
def test_literal_of_any_text_or_bytes_is_digits_between_two_quotes(value: str | bytes) -> None:
    assert re.fullmatch(r"(convert_from\()?'\\x[0-9a-f]*'::bytea(, 'UTF8'\))?", literal(value))


@pytest.mark.parametrize("value", [True, 1.5, ["a"], object()])
def test_literal_of_another_type_is_refused(value: object) -> None:
    with pytest.raises(TypeError):
        literal(value)


def test_call_names_the_prepared_statement() -> None:
    assert call("save_mark", (1, b"")) == "EXECUTE orderchain_save_mark(1,'\\x'::bytea)"
