"""Errors of the engine: `from orderchain.errors import KeyConflict`, or `errors.KeyConflict`.

The tree is described where it is declared, in `chain_kernel.errors`.
"""

from chain_kernel.errors import *  # noqa: F403 - what the kernel declares, and nothing beside it
