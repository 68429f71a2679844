"""Fetches what the first start would fetch: `python -m local_stack.fetch`, run by `make setup`."""

from __future__ import annotations

import os
import sys

from local_stack.errors import SetupNeeded, StackError
from local_stack.folders import default_cache_directory
from local_stack.jars import fetch_kafka


def _tell(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def main() -> int:
    """Fetch Kafka for later starts. Returns 0, 2 when something must be installed, 3 when it could
    not be fetched."""
    try:
        fetch_kafka(default_cache_directory(os.environ), environ=os.environ, progress=_tell)
    except SetupNeeded as error:
        _tell(str(error))
        return 2
    except StackError as error:
        _tell(str(error))
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
