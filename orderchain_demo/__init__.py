"""The demo: an order flow, a lossy link, a matching service that is killed, and Spark."""
