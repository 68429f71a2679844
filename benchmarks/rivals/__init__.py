"""The engine and what a user might take instead of it, each a `benchmarks.rivals.rival.Rival`."""
