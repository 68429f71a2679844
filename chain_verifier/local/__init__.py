"""The small mode: the checks of the verifier in plain Python, without Java and without Spark."""
