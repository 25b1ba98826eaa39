"""The times of a run: links, rates and schedules, for the virtual clock and for the real clock."""
