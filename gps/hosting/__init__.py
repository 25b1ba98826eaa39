"""The local parameter servers (LPS) of clusters, the LPSs' reports, and the adoption of an absent LPS's clusters."""
