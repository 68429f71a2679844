"""Table, goals and figures from the saved lines."""
