"""What the three services and the emulator have in common."""

import os

# gRPC's core reads this as it is loaded; else it writes lines of its own among the events on standard error
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
