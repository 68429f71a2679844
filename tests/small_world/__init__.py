"""Every state of a small world, breadth first: the engine's own cores decide, memory is the rest.

`python -m tests.small_world` explores it wholly, and prints the count.
"""
