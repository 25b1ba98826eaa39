"""What produced the numbers in the documents: each `python -m benchmarks.NAME`, from the repository's root."""
