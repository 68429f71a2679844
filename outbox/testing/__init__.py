"""The outbox without servers, for tests of handlers and of what adds messages.

The pytest fixture `orderchain_outbox` gives a `MemoryOutbox`: the real relay and consumer, over a
PostgreSQL and a Kafka in memory. `docs/choosing-a-delivery-mode.md` shows a test, and says what it
cannot replace.
"""

from chain_kernel.doors import needs_extra

with needs_extra("outbox", __name__):
    from chain_kernel.testing.memory_sql import MemoryConnection
    from chain_kernel.testing.virtual_loop import NotWorkedOff
    from outbox.testing.faults import Awkwardness
    from outbox.testing.memory_outbox import MemoryOutbox

__all__ = ["Awkwardness", "MemoryConnection", "MemoryOutbox", "NotWorkedOff"]
