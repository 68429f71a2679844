"""The outbox's servers in memory: under them the relays, consumers and services are the real ones.

`sql` and what answers by it stand for PostgreSQL, `kafka` for the brokers.
"""
