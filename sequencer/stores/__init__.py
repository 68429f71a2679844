"""Where batches, keys and frames go: PostgreSQL and Kafka."""
