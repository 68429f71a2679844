"""Delayed check: a sender writes twice a message, and a callback service watches over confirms."""
