"""Gives each order its id and pid, commits batches to PostgreSQL, then publishes them to Kafka."""
