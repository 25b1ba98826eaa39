"""The durable memory of the global parameter server (GPS), from which a restarted GPS continues."""
