"""What the outbox logs of others' words is one printable line, with a reason in it."""

from __future__ import annotations

HOSTILE = "no\nchainctl: error: forged\x1b[2J\u202e"
