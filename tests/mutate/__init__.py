"""Small wrongs done to the source, one at a time: does a test notice? `make mutate`."""
