"""The local parameter server (LPS) of each cluster, the reports of LPSs, and the adoption of clusters."""
