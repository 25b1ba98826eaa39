"""Follow one run from its first status to its record, on any backend."""
