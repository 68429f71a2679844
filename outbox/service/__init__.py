"""The message service: the outbox over HTTP, for services that own no outbox of their own."""
