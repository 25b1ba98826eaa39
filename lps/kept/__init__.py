"""A cluster with its own local parameter server (LPS): its rounds, its state on disk, and its adoption by
another LPS.
"""
