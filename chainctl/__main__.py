"""`python -m chainctl` is `chainctl`."""

from __future__ import annotations

import sys

from chainctl.main import main

sys.exit(main())
