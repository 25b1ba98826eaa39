"""The global parameter server (GPS)."""

import os

from fedstrata.process.openblas import scrub_environment

scrub_environment()  # before NumPy is loaded
os.environ["OPENBLAS_NUM_THREADS"] = "1"  # so that no bit of a plan depends on the number of cores
