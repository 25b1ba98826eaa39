"""Which local parameter server (LPS) serves which cluster, what LPSs report, and what happens if one stays away."""
