"""The agent of a board. It stays between runs, and starts a device process for each run that the fleet offers."""
