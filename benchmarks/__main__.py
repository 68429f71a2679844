"""`python -m benchmarks` is `chainctl bench`."""

import sys

from chainctl.main import main

sys.exit(main(["bench", *sys.argv[1:]]))
