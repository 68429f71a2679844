"""Programs that tests run to their end."""

import subprocess
from typing import Any


def completed(*command: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command, however it ends; what it writes is kept as text."""
    words = [*map(str, command)]
    return subprocess.run(words, capture_output=True, text=True, check=False, **options)


def output_of(*command: object, **options: Any) -> str:
    """Run a command, which must succeed; return what it writes to stdout."""
    done = completed(*command, **options)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout
