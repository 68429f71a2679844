"""What a fault is: the checks themselves, which need no Spark and do no I/O."""
