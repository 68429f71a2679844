"""Reads orders from files, as streams. No network, no event loop."""
