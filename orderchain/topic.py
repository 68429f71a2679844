"""Names of topics."""

from __future__ import annotations


def default_topic(chain_id: int) -> str:
    """Return the topic of a chain that was created without naming one."""
    return f"orderchain.{chain_id}"
