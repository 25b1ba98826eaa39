"""Plans, which form the clusters, and global rounds, in which the GPS averages the updates of LPSs."""
