"""Fetches the jars that Spark needs besides itself, once.

Run as a program, `python -m chain_verifier.spark.connectors` fetches them into Spark's own Ivy
cache; every later start of the verifier then works without a network.
"""

from __future__ import annotations

import sys

from chain_kernel.errors import OrderchainError
from chain_verifier.spark.packages import packages_for
from chain_verifier.spark.session import open_session


def main() -> int:
    """Fetch the connectors; print one line before, one after. Returns an exit code."""
    packages = ", ".join(packages_for(kafka=True))
    print(f"Fetching Spark's connectors ({packages}) ...", file=sys.stderr, flush=True)  # noqa: T201
    try:
        with open_session(None, kafka=True):
            pass
    except OrderchainError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return 2
    print("Spark's connectors are there.", file=sys.stderr)  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
