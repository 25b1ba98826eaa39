"""The global parameter server (GPS)."""

from fedstrata.process.arithmetic import scrub_environment

scrub_environment()  # before NumPy is loaded
