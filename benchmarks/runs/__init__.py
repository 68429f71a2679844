"""Runs of the questions."""
