"""What is logged of abnormal deliveries: one printable line each, and why a hook has failed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any
from uuid import UUID

from outbox import alerts
from outbox.alerts import Alerts
from outbox.sender.relay_config import RelayConfig, RelayStats
from outbox.sender.store import Abnormal

if TYPE_CHECKING:
    import pytest

HOSTILE = "no\nchainctl: error: forged\x1b[2J\u202e"
ESCAPED = "no\\nchainctl: error: forged\\x1b[2J\\u202e"

ABNORMAL = Abnormal(
    message_id=UUID(int=1), consumer="ledger", destination="clearing", send_count=3, reason=HOSTILE
)


def make(**settings: Any) -> Alerts:
    config = RelayConfig(database="postgresql://relay@h/db", kafka="h:9092", **settings)
    return Alerts(config, RelayStats())


async def test_reason_that_others_wrote_is_one_printable_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    make().report([ABNORMAL])
    (record,) = caplog.records
    assert record.getMessage().endswith(f"is abnormal after 3 tries: {ESCAPED}")
    assert record.getMessage().isprintable()


async def test_hook_that_is_silent_is_logged_with_a_reason(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alerts, "HOOK_SECONDS", 0.05)
    silent = make(alert_command=("sleep", "600"))
    silent.report([ABNORMAL])
    running = asyncio.create_task(silent.run())
    await silent.finish()
    running.cancel()
    assert caplog.records[-1].getMessage() == "alert command failed: TimeoutError"
