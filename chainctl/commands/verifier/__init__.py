"""The verifier: what is proven, archived, dropped, and kept elsewhere."""
