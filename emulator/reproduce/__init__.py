"""Runs of published tables, compared with the published values, and checks of other people's results."""
