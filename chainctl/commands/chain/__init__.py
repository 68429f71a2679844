"""A chain: made, filled with orders, and read."""
