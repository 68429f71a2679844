"""The verifier on Spark: for chains of any length."""
