"""Trust between processes: an authority, names in certificates, TLS, and one table that says who may make which
call.
"""
