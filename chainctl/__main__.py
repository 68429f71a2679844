"""`python -m chainctl` is `chainctl`."""

from __future__ import annotations

import sys

from chainctl import run

sys.exit(run())
