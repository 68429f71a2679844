"""The parts of the schema, what each was shipped as, and how a database differs from that."""
