"""The console: one page that shows a database live."""
