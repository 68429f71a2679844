"""Fetches the jar that Spark needs besides itself, once.

Run as a program, `python -m chain_verifier.spark.connectors` fetches it into Spark's own Ivy
cache; every later start of the verifier then works without a network.
"""

from __future__ import annotations

import sys

from chain_kernel.errors import OrderchainError
from chain_verifier.spark.packages import POSTGRESQL_JDBC
from chain_verifier.spark.session import open_session


def main() -> int:
    """Fetch it; print one line before, one after. Returns an exit code."""
    print(f"Fetching {POSTGRESQL_JDBC} for Spark ...", file=sys.stderr, flush=True)  # noqa: T201
    try:
        with open_session(None):
            pass
    except OrderchainError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return 2
    print("It is there.", file=sys.stderr)  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
