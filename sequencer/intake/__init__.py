"""Orders that come from a topic or a file."""
