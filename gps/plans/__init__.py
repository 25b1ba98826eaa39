"""Plans: which devices form which cluster, and the global rounds in which their streams move."""
