"""Models that judge what was seen of the engine, over plain values; none shares code with it.

Each is stepped through observations: methods named after what was seen, and where it was seen.
A rule belongs to a guarantee of docs/guarantees.md.
"""
