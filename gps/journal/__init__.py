"""The journal of the global parameter server (GPS): a file from which a restarted GPS continues."""
