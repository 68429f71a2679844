"""Client keys: what is known of them, in memory and in the database."""
