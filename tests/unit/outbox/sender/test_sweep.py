"""What is logged of abnormal deliveries: one printable line each."""

from uuid import UUID

import pytest

from outbox.sender.store import AbnormalDelivery
from outbox.sender.sweep import report_abnormal

HOSTILE = "no\nchainctl: error: forged\x1b[2J\u202e"
ESCAPED = "no\\nchainctl: error: forged\\x1b[2J\\u202e"

ABNORMAL = AbnormalDelivery(
    message_id=UUID(int=1), consumer="ledger", destination="clearing", send_count=3, reason=HOSTILE
)


async def test_reason_that_others_wrote_is_one_printable_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    report_abnormal([ABNORMAL])
    (record,) = caplog.records
    assert record.getMessage().endswith(f"is abnormal after 3 tries: {ESCAPED}")
    assert record.getMessage().isprintable()
