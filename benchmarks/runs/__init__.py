"""How each question is run."""
