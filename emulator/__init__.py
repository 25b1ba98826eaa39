"""The experimenter's side: command line, backends, sweeps and reports."""

import fedstrata as fedstrata  # first, for a safe sys.path
