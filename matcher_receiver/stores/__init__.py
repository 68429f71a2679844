"""Where a receiver keeps its checkpoint, and where frames come from."""
