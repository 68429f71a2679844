"""The command line, and the place where the parts are wired together."""

from __future__ import annotations

import os
import signal
import sys

_REFUSED = 2
_INTERRUPTED = 130
_TERMINATED = 143


def run() -> int:
    """Run the command line and return its exit code; the entry point `chainctl`.

    Without the extra `cli`, `chainctl` is installed, but nothing can read its arguments: it says
    so.
    """
    # The imports take long, and for process 1, as in a container, the kernel drops a SIGTERM that
    # has no handler. Nothing is open yet; `main` sets another handler.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(_TERMINATED))
    try:
        from chainctl.main import main
    except KeyboardInterrupt:
        return _INTERRUPTED
    except ModuleNotFoundError as error:
        from chain_kernel.text import not_installed

        missing = (error.name or "").partition(".")[0]
        sys.stderr.write(f"chainctl: {not_installed(missing, 'cli')}\n")
        return _REFUSED
    return main()
