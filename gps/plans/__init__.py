"""Plans, which form the clusters, and the global rounds, in which the streams move."""
