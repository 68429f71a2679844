"""A real PostgreSQL and a real Kafka on loopback, for the demo, the tests and the benchmarks."""
