"""What a run would be or would have been, without running it: bytes, memory and time."""
