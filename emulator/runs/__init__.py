"""One run from its first status to its record, on any backend."""
