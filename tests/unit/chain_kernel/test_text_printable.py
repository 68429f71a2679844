"""Foreign text becomes one line that neither a log nor a terminal can misread."""

import asyncio
import unicodedata

import aiokafka.errors
import asyncpg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain_kernel.errors import OrderchainError, RetryError
from chain_kernel.text import NO_LIMIT, printable, reason_of

ANY_TEXT = st.text(st.characters())  # surrogates, controls and all


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain text", "plain text"),
        ("", ""),
        ("日本語 ключ é", "日本語 ключ é"),
        ("a\nb", "a\\nb"),
        ("a\r\n\tb", "a\\r\\n\\tb"),
        ("\x1b[2Jgone", "\\x1b[2Jgone"),
        ("\x9b2J", "\\x9b2J"),
        ("\x00\x07\x7f", "\\x00\\x07\\x7f"),
        ("right \u202e left", "right \\u202e left"),
        ("\u2066\u2069\u200b\u2028\u2029", "\\u2066\\u2069\\u200b\\u2028\\u2029"),
        ("half \ud83d", "half \\ud83d"),
        ("\U000e0001", "\\U000e0001"),
        ("C:\\new", "C:\\new"),
        (17, "17"),
        (None, "None"),
    ],
)
def test_printable_escapes_what_is_not_as_repr_does(text: object, shown: str) -> None:
    assert printable(text) == shown


@given(ANY_TEXT)
def test_printable_of_any_text_is_one_printable_line_that_can_be_written(text: str) -> None:
    shown = printable(text, NO_LIMIT)
    assert shown.isprintable()
    assert len(shown.splitlines()) <= 1
    shown.encode()
    assert not any(unicodedata.category(each) in {"Cc", "Cf", "Cs", "Zl", "Zp"} for each in shown)


def test_printable_of_a_long_text_is_cut_with_dots_between_whole_escapes() -> None:
    assert printable("x" * 500) == "x" * 500
    assert printable("x" * 501) == "x" * 497 + "..."
    assert printable("\n" * 300, 9) == "\\n\\n\\n..."
    assert printable("\x1b" * 300, 9) == "\\x1b..."


@pytest.mark.parametrize(
    "error",
    [
        TimeoutError(),
        ConnectionResetError(),
        OSError(),
        asyncio.CancelledError(),
        asyncpg.InterfaceError(""),
        asyncpg.PostgresError(""),
        RetryError(),
        ValueError("\n \t"),
    ],
    ids=repr,
)
def test_reason_of_an_error_without_a_text_is_its_class(error: BaseException) -> None:
    assert reason_of(error) == type(error).__name__


def test_reason_of_an_error_with_a_text_is_the_text_on_one_line() -> None:
    assert (
        reason_of(ValueError("no\nDETAIL:  \x1b[31mred\u202e")) == "no DETAIL: \\x1b[31mred\\u202e"
    )
    assert reason_of(aiokafka.errors.KafkaTimeoutError()) == "KafkaTimeoutError"
    assert "IncompleteReadError" not in reason_of(asyncio.IncompleteReadError(b"", 4))
    assert len(reason_of(ValueError("x" * 1_000))) == 500


@pytest.mark.parametrize("kind", [RetryError, OrderchainError])
def test_error_of_ours_with_foreign_text_is_one_printable_line(kind: type[OrderchainError]) -> None:
    error = kind("the server said: no\nchainctl: error: forged\x1b[2J\u202e")
    assert str(error) == "the server said: no\\nchainctl: error: forged\\x1b[2J\\u202e"
