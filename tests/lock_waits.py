"""Who waits for the transaction of the connection that asks.

`pg_stat_activity` cannot say it there: what a transaction has read of it once stays as it was.
"""

from typing import Final

WAITING: Final = """
SELECT pid FROM pg_locks WHERE NOT granted AND pg_backend_pid() = ANY (pg_blocking_pids(pid))
"""
