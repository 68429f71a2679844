"""The checks themselves: they define each fault, need no Spark and do no I/O."""
