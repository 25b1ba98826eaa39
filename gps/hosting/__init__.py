"""Which local parameter server (LPS) serves which cluster, the reports of LPSs, and the adoption of clusters of an
absent LPS.
"""
