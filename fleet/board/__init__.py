"""The agent of a board: it stays, and starts a device process for each run that the fleet offers."""
