"""In-memory stand-ins for the database and the broker, with a dial for faults.

They pass the same contract suites as the real ones (`tests/contract`), so that what is shown with
them holds for the engine's cores and shells.
"""
