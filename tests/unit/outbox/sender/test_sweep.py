"""What is logged of abnormal deliveries: one printable line each, and why a hook has failed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from outbox.sender import sweep
from outbox.sender.config import RelayConfig, RelayStats
from outbox.sender.store import AbnormalDelivery
from outbox.sender.sweep import Alerts
from tests.unit.outbox.answer_server import answering

if TYPE_CHECKING:
    from collections.abc import Sequence

HOSTILE = "no\nchainctl: error: forged\x1b[2J\u202e"
ESCAPED = "no\\nchainctl: error: forged\\x1b[2J\\u202e"

ABNORMAL = AbnormalDelivery(
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
    monkeypatch.setattr(sweep, "HOOK_SECONDS", 0.05)
    silent = make(alert_command=("sleep", "600"))
    silent.report([ABNORMAL])
    running = asyncio.create_task(silent.run())
    await silent.finish()
    running.cancel()
    assert caplog.records[-1].getMessage() == "alert command failed: TimeoutError"


async def failed_lines(caplog: pytest.LogCaptureFixture, alerts: Alerts) -> Sequence[str]:
    """What is logged about the hooks of one alert."""
    alerts.report([ABNORMAL])
    running = asyncio.create_task(alerts.run())
    await alerts.finish()
    running.cancel()
    return [each.getMessage() for each in caplog.records if "failed" in each.getMessage()]


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ("204 Taken", []),
        ("302 Found", []),
        ("301 Moved", ["alert webhook failed: it has answered with status 301"]),
        ("500 Oh", ["alert webhook failed: it has answered with status 500"]),
    ],
)
async def test_webhook_that_did_not_take_an_alert_is_logged_without_its_address(
    caplog: pytest.LogCaptureFixture, status: str, expected: list[str]
) -> None:
    answer = f"HTTP/1.1 {status}\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n"
    caplog.set_level("INFO")
    async with answering(answer.encode()) as (url, seen):
        assert await failed_lines(caplog, make(alert_webhook=f"{url}/secret")) == expected
    assert seen[0].startswith(b"POST /secret HTTP/1.1")
    assert b'"event":"abnormal"' in seen[0]
    assert "secret" not in caplog.text


async def test_webhook_is_called_through_the_proxy_that_the_environment_names(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with answering(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n") as (url, seen):
        monkeypatch.setenv("http_proxy", url.removeprefix("http://"))
        monkeypatch.setenv("no_proxy", "other.example")
        assert await failed_lines(caplog, make(alert_webhook="http://hooks.example/x")) == []
        monkeypatch.setenv("no_proxy", "hooks.invalid")
        assert await failed_lines(caplog, make(alert_webhook="http://hooks.invalid/x"))
    assert [each.partition(b" HTTP")[0] for each in seen] == [b"POST http://hooks.example/x"]
