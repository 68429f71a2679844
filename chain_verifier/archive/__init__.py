"""The archive of a chain: verified rows as Parquet, read back and proven, and retention."""
