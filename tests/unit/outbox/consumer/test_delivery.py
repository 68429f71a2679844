from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from outbox.consumer.config import TrustedSenders
from outbox.consumer.delivery import Delivery, read_delivery
from outbox.consumer.inbox import storable_error
from outbox.destination import Destination
from outbox.errors import BadRecord
from outbox.message import draw_message_ids
from outbox.records import common_headers, record_headers

NOW = datetime(2026, 11, 21, tzinfo=UTC)
CLEARING = Destination(name="clearing", topic="trades", consumers=("ledger",))


TRUSTED = TrustedSenders(frozenset({"trades.confirms"}), ())


def read_delivered(record: Any) -> Delivery:
    return read_delivery(record, NOW, TRUSTED)


class Record:
    """What a delivery is read from."""

    def __init__(self, **changed: Any) -> None:
        (self.message_id,) = draw_message_ids(1)
        self.oldest = UUID(int=7)
        self.topic, self.partition, self.offset = "trades", 2, 40
        self.key: bytes | None = b"anna"
        self.value: bytes | None = b"note"
        common = common_headers(CLEARING, self.oldest)
        self.headers = tuple(record_headers(self.message_id, {"trace": "a b"}, common))
        vars(self).update(changed)


def test_messages_of_one_key_share_a_lane_and_others_have_their_own() -> None:
    first, second = read_delivered(Record()), read_delivered(Record())
    assert first.queue_key == second.queue_key
    alone = read_delivered(Record(key=None))
    assert alone.queue_key == alone.message_id.bytes
    assert read_delivered(Record(key=b"")).queue_key not in (first.queue_key, alone.queue_key)


def test_key_that_is_no_text_is_shown_all_the_same() -> None:
    assert read_delivered(Record(key=b"\xffk")).key == "\\xffk"


@pytest.mark.parametrize("headers", [(), (("orderchain-message-id", b"{1}"),)])
def test_record_that_is_no_message_is_refused(headers: tuple[tuple[str, bytes], ...]) -> None:
    with pytest.raises(BadRecord, match="headers"):
        read_delivered(Record(headers=headers))


def test_error_text_is_kept_short_and_without_what_a_database_refuses() -> None:
    assert storable_error("a\0b\udcff") == "a\\0b\\udcff"
    assert len(storable_error("x" * 10_000)) == 2_000
