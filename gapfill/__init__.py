"""Reads the rows that a receiver lacks straight from the database, with a read-only role."""
