"""Programs that measured the numbers in the documents: run `python -m benchmarks.NAME` in the repository's root."""
