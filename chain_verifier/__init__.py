"""Replays chains, on Spark or in plain Python, and proves them whole, or names each fault."""
