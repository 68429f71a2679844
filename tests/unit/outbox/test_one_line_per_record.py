"""What the outbox logs of others' words is one printable line, with a reason in it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from orderchain.errors import RetryError
from outbox.alerts import Alerts
from outbox.checking import _log_abnormal
from outbox.confirm_record import decode_confirm
from outbox.dispatch import _reason
from outbox.http_call import call_json
from outbox.relay_config import RelayConfig
from outbox.relay_stats import RelayStats
from outbox.statuses import Abnormal

if TYPE_CHECKING:
    from collections.abc import Iterable

HOSTILE = "no\nchainctl: error: forged\x1b[2J\u202e"
