"""Readers of rows, one module a kind: for frames, for checks on Spark and without it."""
