"""The shared kernel: what a chain is, how it is framed, sealed and linked. No network I/O."""
