"""Repeat published tables, and compare the results with the published values. Check other people's results."""
