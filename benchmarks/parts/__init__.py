"""Benchmarks of one part of the engine alone: the functions that `benchmarks.programs` runs."""
