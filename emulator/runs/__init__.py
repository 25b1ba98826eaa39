"""One run from its first status to its record, wherever it runs."""
