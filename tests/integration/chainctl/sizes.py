"""Sizes that fixtures and tests must agree on."""

from typing import Final

FILLED_ROWS: Final = 3_000
"""Rows of a chain that is filled: several frames and pages, sequenced in a moment."""
