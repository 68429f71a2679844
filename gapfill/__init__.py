"""Reads the rows that a receiver lacks straight from the database, with a read-only role."""

from __future__ import annotations

from chain_kernel.doors import needs_extra

with needs_extra("receiver", __name__):
    from gapfill.config import GapReaderConfig
    from gapfill.preferred import PreferenceConfig, PreferredSources
    from gapfill.reader import GapReader

__all__ = [
    "GapReader",
    "GapReaderConfig",
    "PreferenceConfig",
    "PreferredSources",
]
