"""The consuming end: each message is handled once, by an inbox."""
