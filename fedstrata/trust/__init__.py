"""Trust between processes: an authority, names in certificates, TLS, and one table of who may make which call."""
