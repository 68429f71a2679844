"""Alerts: notify a person of what needs one.

An alert reports a delivery that has become abnormal, or a consumer that is not heard from.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import msgspec

from orderchain.errors import RetryError, SettingError
from orderchain.text import counted, printable, reason_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from outbox.sender.relay_config import RelayConfig, RelayStats
    from outbox.sender.store import Abnormal, Silent

_log = logging.getLogger(__name__)

HOOK_SECONDS: Final = 10.0
"""Deadline of one call of a hook."""

WAITING_MAX: Final = 1_000
"""Alerts that may wait for a slow hook. Above it the oldest are dropped; their log lines remain."""

_KILL_SECONDS: Final = 1.0
"""A killed command ends at once, unless the machine hangs."""

LINES_MAX: Final = 20
"""Deliveries of one alert that are logged one by one. One hook call reports at most
`HOOK_DELIVERIES_MAX`."""

HOOK_DELIVERIES_MAX: Final = 1_000

_SEEN_ELSEWHERE: Final = (302, 303)
"""Answers to a POST that was taken, and whose result is somewhere else."""


class Alerts:
    """Reports abnormal deliveries: one log line each at error level, and the configured hooks."""

    def __init__(self, config: RelayConfig, stats: RelayStats) -> None:
        if config.alert_webhook and urlsplit(config.alert_webhook).scheme not in {"http", "https"}:
            raise SettingError("alert_webhook", "a secret", "an http or https URL")
        self._config = config
        self._stats = stats
        self._waiting: deque[bytes] = deque(maxlen=WAITING_MAX)
        self._some = asyncio.Event()
        self._finished = asyncio.Event()
        self._finished.set()

    def report(self, abnormal: Sequence[Abnormal]) -> None:
        """Report deliveries; never waits and never raises."""
        for each in abnormal[:LINES_MAX]:
            _log.error(
                "message %s for %s (consumer %r) is abnormal after %s: %s",
                each.message_id, printable(each.destination), each.consumer,
                counted(each.send_count, "try", "tries"), printable(each.reason),
            )  # fmt: skip
        if len(abnormal) > LINES_MAX:
            more = counted(len(abnormal) - LINES_MAX, "delivery", "deliveries")
            _log.error("abnormal beyond these: %s", more)
        self._call_hooks(
            {
                "event": "abnormal",
                "count": len(abnormal),
                "deliveries": abnormal[:HOOK_DELIVERIES_MAX],
            }
        )

    def report_silent(self, silent: Sequence[Silent], seconds: float) -> None:
        """Report consumers that are not heard from; never waits and never raises."""
        for each in silent:
            _log.error(
                "%s, and messages have waited for it for more than %.0f s; "
                "does it run, and does it read the topic?",
                printable(each.shown), seconds,
            )  # fmt: skip
        consumers = silent[:HOOK_DELIVERIES_MAX]
        self._call_hooks({"event": "silent", "count": len(silent), "consumers": consumers})

    def _call_hooks(self, content: dict[str, object]) -> None:
        if self._config.alert_webhook or self._config.alert_command:
            self._waiting.append(msgspec.json.encode(content))
            self._finished.clear()
            self._some.set()

    async def run(self) -> None:
        """Call the hooks, one alert after another, until cancelled."""
        while True:
            await self._some.wait()
            while self._waiting:
                await self._call(self._waiting.popleft())
            self._some.clear()
            self._finished.set()

    async def finish(self) -> None:
        """Return once every alert was reported."""
        await self._finished.wait()

    async def _call(self, body: bytes) -> None:
        if self._config.alert_webhook:
            await self._guarded("webhook", self._post(body))
        if self._config.alert_command:
            await self._guarded("command", self._run(body))

    async def _guarded(self, hook: str, call: object) -> None:
        try:
            async with asyncio.timeout(HOOK_SECONDS):
                await call  # type: ignore[misc] # a coroutine of either kind
        except (OSError, TimeoutError, ValueError, RetryError) as error:
            self._stats.alerts_failed += 1
            _log.error("alert %s failed: %s", hook, reason_of(error))

    async def _post(self, body: bytes) -> None:
        from outbox.http_call import CALL_ERRORS, sent_request  # late: it takes 0.1 s

        url, headers = self._config.alert_webhook, {"Content-Type": "application/json"}
        try:
            async with sent_request("POST", url, headers, body, _proxy_of(url)) as response:
                status = response.status_code
        except CALL_ERRORS as error:
            raise RetryError(reason_of(error)) from error
        if not 200 <= status < 300 and status not in _SEEN_ELSEWHERE:
            raise RetryError(f"it has answered with status {status}")

    async def _run(self, body: bytes) -> None:
        process = await asyncio.create_subprocess_exec(
            *self._config.alert_command, stdin=asyncio.subprocess.PIPE
        )
        try:
            await process.communicate(body)
        finally:
            if process.returncode is None:
                process.kill()
                async with asyncio.timeout(_KILL_SECONDS):
                    await process.wait()  # otherwise it remains as a zombie
        if process.returncode:
            raise OSError(f"it ended with {process.returncode}")


def _proxy_of(url: str) -> str | None:
    """Return the proxy through which the environment wants a URL to be called, if any."""
    parts = urlsplit(url)
    proxy = getproxies().get(parts.scheme)
    if not proxy or proxy_bypass(parts.netloc):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"
