"""Plans, which form the clusters, and global rounds, in which the streams change."""
