"""The device service."""

from fedstrata.process.openblas import scrub_environment

scrub_environment()  # before NumPy is loaded
