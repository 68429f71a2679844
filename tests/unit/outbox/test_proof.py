"""The proof of a confirm, byte by byte: consumers in other languages make it, too."""

from __future__ import annotations

import pytest

from outbox.records import is_proven, proof_of, token_of

KEY = bytes(range(32))
MESSAGE_ID = bytes(range(16))
TOKEN = bytes.fromhex("e6d0ed1db9b6d050d78e02ffd6950930")
PROOF = bytes.fromhex("591a7c6a0b970ad79289b3d7d7be05cc")


def test_token_and_proof_are_those_of_the_vectors() -> None:
    assert token_of(KEY, MESSAGE_ID) == TOKEN
    assert proof_of(TOKEN, "clearing", 1, 2**60) == PROOF
    assert is_proven(KEY, MESSAGE_ID, "clearing", 1, 2**60, PROOF)


@pytest.mark.parametrize(
    ("key", "message_id", "consumer", "kind", "until"),
    [
        (bytes(32), MESSAGE_ID, "clearing", 1, 2**60),
        (KEY, bytes(16), "clearing", 1, 2**60),
        (KEY, MESSAGE_ID, "ledger", 1, 2**60),
        (KEY, MESSAGE_ID, "clearing", 0, 2**60),
        (KEY, MESSAGE_ID, "clearing", 1, 2**60 + 1),
    ],
)
def test_proof_is_of_one_message_one_consumer_and_one_word(
    key: bytes, message_id: bytes, consumer: str, kind: int, until: int
) -> None:
    assert not is_proven(key, message_id, consumer, kind, until, PROOF)
