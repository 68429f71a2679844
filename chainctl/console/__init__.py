"""The console: one page that shows a database live, and acts on it by hand."""
