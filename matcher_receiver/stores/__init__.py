"""Stores of a receiver's checkpoint, and the source of its frames."""
