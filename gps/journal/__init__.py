"""The durable memory of the global parameter server (GPS): what a restarted GPS goes on from."""
