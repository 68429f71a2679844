"""Chains as DataFrames: a data source of Spark, a replay of orders, checks of any ordered rows."""
