"""Clusters that have their own local parameter server (LPS): the cluster's model, its state on the LPS's disk, and its
adoption by another LPS.
"""
