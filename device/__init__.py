"""The devices."""

from fedstrata.arithmetic import scrub_environment

scrub_environment()  # before NumPy is loaded
