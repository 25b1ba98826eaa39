"""Clusters that span local parameter servers (LPSs): the global parameter server keeps their streams."""
