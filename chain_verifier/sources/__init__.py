"""Where rows are read from, one module a kind: for frames, for checks on Spark and without it."""
