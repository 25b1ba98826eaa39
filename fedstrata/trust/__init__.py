"""Who may speak to whom: an authority, names in certificates, TLS on the wire, and one table of who may call what."""
