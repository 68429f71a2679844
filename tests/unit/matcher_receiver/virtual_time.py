"""Virtual time, as the engine ships it."""

from __future__ import annotations

from chain_kernel.testing.virtual_loop import run_virtual, virtual_clock

__all__ = ["run_virtual", "virtual_clock"]
