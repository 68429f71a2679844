"""The command line, and the place where the parts are wired together."""

from __future__ import annotations

import sys

_REFUSED = 2


def run() -> int:
    """Run the command line and return its exit code; the entry point `chainctl`.

    Without the extra `cli`, `chainctl` is installed, but nothing can read its arguments: it says
    so.
    """
    try:
        from chainctl.main import main
    except ModuleNotFoundError as error:
        from chain_kernel.text import not_installed

        missing = (error.name or "").partition(".")[0]
        sys.stderr.write(f"chainctl: {not_installed(missing, 'cli')}\n")
        return _REFUSED
    return main()
