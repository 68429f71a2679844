"""Where rows are read from: each source becomes a `table.Table` with the same columns."""
