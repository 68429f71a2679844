"""Stores of batches, keys and frames: PostgreSQL and Kafka."""
