"""Clusters that span local parameter servers (LPSs). The global parameter server keeps their streams."""
