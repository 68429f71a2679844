"""Replays chains on Spark and proves them whole, or names each fault."""
